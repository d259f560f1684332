from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.tasks.adding.entry import add_entry, check_is_new, render_entry
from repairgym.tasks.layers.catalogue import Package, load_catalogue

PACKAGE = Package(
    name="pkg",
    split="test",
    version="1.0",
    sources=tuple(f"pkg/folder_number_{number}/*.py" for number in range(8)),
    tests=('tests/te"st\\_*.py',),
    releases=(("0.9", "1.0"),),
    sdists={"0.9": "0" * 64, "1.0": "1" * 64},
)


def test_an_entry_is_read_back_and_comments_stay_on_their_line(tmp_path: Path) -> None:
    text = render_entry(PACKAGE, {"sources": "two\nlines = 1"}, ["a\rb"], "repairgym tasks add pkg")
    assert "# sources: two lines = 1\nsources = [\n" in text
    assert "#   a b\n" in text
    assert "aged" not in text
    add_entry(tmp_path / "mine.toml", text)
    assert load_catalogue(tmp_path / "mine.toml").package == (PACKAGE,)


def test_commands_that_add_at_once_lose_no_entry(tmp_path: Path) -> None:
    path, gate = tmp_path / "mine.toml", threading.Barrier(4)

    def add(name: str) -> None:
        gate.wait()
        add_entry(path, render_entry(PACKAGE.model_copy(update={"name": name}), {}, [], "c"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcd"))
    assert sorted(package.name for package in load_catalogue(path).package) == ["a", "b", "c", "d"]
    assert [child.name for child in tmp_path.iterdir()] == ["mine.toml"]


def test_the_rest_of_a_catalogue_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.toml"
    add_entry(path, render_entry(PACKAGE, {}, [], "c"))
    before = path.read_text()
    with pytest.raises(InputError, match="pkg"):
        add_entry(path, render_entry(PACKAGE, {}, [], "c"))
    assert path.read_text() == before
    add_entry(path, render_entry(PACKAGE.model_copy(update={"name": "other"}), {}, [], "c"))
    assert path.read_text().startswith(before.rstrip())
    assert [package.name for package in load_catalogue(path).package] == ["pkg", "other"]
    assert [child.name for child in path.parent.iterdir()] == ["mine.toml"]
    with pytest.raises(InputError, match="has a package other already"):
        check_is_new(path, "other", "package")
    check_is_new(path, "other", "repository")
    check_is_new(tmp_path / "missing.toml", "other", "package")
