"""The shipped catalogue of npm packages and its locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.tasks.layers.catalogue import NpmPackage, load_catalogue
from repairgym.tasks.layers.environments import lock_of
from repairgym.tasks.layers.npm_locks import NODE_PACKAGES, is_npm_lock, locked_names

ENTRY = """[[npm]]
name = "a"
split = "train"
sources = ["index.js"]
tests = ["test/*.js"]
version = "1.0.0"
runner = "tape"
[npm.sdists]
"1.0.0" = "PIN"
"""


def test_every_entry_has_a_lock_that_pins_node_and_holds_neither_the_package_nor_addresses() -> None:
    packages = load_catalogue(Path("catalog/npm.toml")).npm
    assert packages
    for package in packages:
        lock = lock_of(package)
        assert is_npm_lock(lock)
        names = locked_names(lock)
        assert set(NODE_PACKAGES) <= names
        assert package.name not in names
        assert "://" not in lock


@pytest.mark.parametrize("pin", ["0" * 64, "sha1-abc="])
def test_a_pin_is_an_integrity(tmp_path: Path, pin: str) -> None:
    (tmp_path / "mine.toml").write_text(ENTRY.replace("PIN", pin), encoding="utf-8")
    with pytest.raises(InputError, match="sha512"):
        load_catalogue(tmp_path / "mine.toml")


def test_an_entry_names_its_runner(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ENTRY.replace("PIN", "sha512-abc="), encoding="utf-8")
    (package,) = load_catalogue(tmp_path / "mine.toml").select(("a",))
    assert isinstance(package, NpmPackage)
    assert package.test_runner.is_node
    assert package.test_runner.is_signed
