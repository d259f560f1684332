"""The shipped catalogue of npm packages and its locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.tasks.javascript.package_check import with_reader_of_ranges
from repairgym.tasks.layers.catalogue import NpmPackage, file_stem, load_catalogue, name_of_stem
from repairgym.tasks.layers.environments import lock_of
from repairgym.tasks.layers.npm_locks import NODE_PACKAGES, is_npm_lock, locked_names
from repairgym.tasks.manifest.manifest import TaskManifest

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


@pytest.mark.parametrize("path", ["catalog/npm_real.toml", "catalog/npm_breakages.toml"])
def test_every_recorded_task_is_proven_and_has_the_lock_and_the_split_of_its_package(path: str) -> None:
    catalogues = (load_catalogue(Path(f"catalog/{name}.toml")) for name in ("npm", "npm_aged"))
    packages = {package.name: package for catalogue in catalogues for package in catalogue.npm}
    manifest = TaskManifest(Path(path))
    assert manifest.names()
    for name in manifest.names():
        content, package = manifest.load(name), packages[name]
        assert (content.package.name, content.package.split) == (name, package.split)
        lock = "" if package.aged else lock_of(package)
        for entry in content.entries.values():
            own = with_reader_of_ranges(lock) if lock and entry.source == "breakages" else lock
            assert manifest.lock(entry) == (own or manifest.lock(entry))
            num_empty, num_failed, num_gold, num_passed = entry.runs
            assert num_empty == num_failed > 0
            assert num_gold == num_passed > 0


@pytest.mark.parametrize("name", ["../a", "@scope/../a", "a/b", "", "@scope/"])
def test_a_name_is_one_of_npm(tmp_path: Path, name: str) -> None:
    text = ENTRY.replace("PIN", "sha512-abc=").replace('"a"', f'"{name}"')
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="@fastify/cookie"):
        load_catalogue(tmp_path / "mine.toml")


def test_a_scope_is_part_of_the_names_of_files() -> None:
    assert file_stem("@fastify/cookie") == "@fastify+cookie"
    assert [name_of_stem(file_stem(name)) for name in ("@fastify/cookie", "qs")] == ["@fastify/cookie", "qs"]
