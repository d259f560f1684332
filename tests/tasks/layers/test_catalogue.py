from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import InputError, TaskError
from repairgym.tasks.layers.catalogue import Package, catalogue_digest, load_catalogue
from repairgym.tasks.layers.environments import read_lock
from repairgym.tasks.layers.store import LayerStore

OWN_CORPUS = {"torch", "transformers", "sympy", "networkx", "jinja2", "mpmath", "markupsafe"}
"""Packages that models are pre-trained on."""
ENTRY = """
[[package]]
name = "a"
split = "train"
version = "1"
sources = ["*.py"]
tests = ["tests.py"]
[package.sdists]
"1" = "0"
"""


def test_shipped_catalogue_holds_what_evaluation_needs() -> None:
    packages = load_catalogue().package
    assert len(packages) >= 24
    assert sum(bool(package.releases) for package in packages) >= 6
    for split, least in (("test", 8), ("validation", 4), ("train", 12)):
        assert sum(package.split == split for package in packages) >= least
    assert not {p.name for p in packages if p.split != "train"} & OWN_CORPUS


@pytest.mark.parametrize("package", load_catalogue().package, ids=lambda package: package.name)
def test_every_package_has_its_pins(package: Package) -> None:
    assert all(len(sha256) == 64 for sha256 in package.sdists.values())
    lock = read_lock(package.requirements)
    assert "pytest==8.3.5" in lock
    assert all(name.split("=")[0].lower() in lock for name in package.requirements)
    assert "://" not in lock


def test_patterns_find_files_and_say_when_they_do_not(tinycalc: Package, layers: LayerStore) -> None:
    tree = layers.tree(tinycalc.sdist())
    assert tinycalc.source_files(tree) == ("src/tinycalc/__init__.py", "src/tinycalc/numbers.py")
    assert tinycalc.test_files(tree) == ("tests/test_numbers.py",)
    without = tinycalc.model_copy(update={"excluded": ("src/tinycalc/__init__.py",)})
    assert without.source_files(tree) == ("src/tinycalc/numbers.py",)
    with pytest.raises(TaskError, match="matches no file"):
        tinycalc.model_copy(update={"tests": ("nowhere/*.py",)}).test_files(tree)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY + ENTRY, "listed twice: a"),
        (ENTRY.replace('"1" = "0"', '"2" = "0"'), "no SHA-256 in sdists for 1"),
        (ENTRY + "colour = 1", "colour"),
        ("[[package", "cannot be used"),
    ],
)
def test_broken_catalogue_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_catalogue(path)


def test_a_fault_names_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(ENTRY.replace("sources = ", "test = ") + '[[repository]]\nsplit = "train"\n')
    with pytest.raises(
        InputError, match=r"package a sources: .*; package a test: .*; repository number 1 name: "
    ) as caught:
        load_catalogue(path)
    assert "http" not in str(caught.value)


def test_sources_in_src_need_no_root(tinycalc: Package) -> None:
    bare = tinycalc.model_copy(update={"root": ""})
    assert bare.source_paths == tinycalc.source_paths
    mixed = bare.model_copy(update={"sources": ("src/a.py", "a.py")})
    assert mixed.source_paths[0] == ""


def test_selection_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(ENTRY + ENTRY.replace('"a"', '"b"'))
    catalogue = load_catalogue(path)
    assert [package.name for package in catalogue.select(("b",))] == ["b"]
    with pytest.raises(InputError, match="no package zope"):
        catalogue.select(("zope",))
    assert catalogue_digest(catalogue.select(("a",))) != catalogue_digest(catalogue.select(("b",)))
