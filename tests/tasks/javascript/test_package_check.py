"""The files that a check of an npm package adds, and its lock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.tasks.javascript.package_check import (
    check_files,
    checked,
    is_npm_check,
    with_reader_of_ranges,
    without_reader_of_ranges,
)
from repairgym.tasks.javascript.syntax import cuttable_tests
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.npm_locks import locked_names

PACKAGE = NpmPackage(
    name="a", split="train", sources=("index.js",), tests=("test.js",), version="1.0.0",
    sdists={"1.0.0": "sha512-abc="}, runner="tape",
)  # fmt: skip
LOCK = json.dumps({"packages": {"": {"name": "environment"}, "node_modules/tape": {"version": "5.9.0"}}})


def test_a_lock_gets_the_reader_of_ranges_under_a_name_of_its_own() -> None:
    lock = with_reader_of_ranges(LOCK)
    assert locked_names(lock) == {"tape", "repairgym-semver"}
    assert json.loads(lock)["packages"][""]["dependencies"] == {"repairgym-semver": "npm:semver@7.7.3"}
    assert with_reader_of_ranges(lock) == lock
    plain = json.dumps(json.loads(LOCK), indent=1, sort_keys=True) + "\n"
    assert without_reader_of_ranges(lock) == without_reader_of_ranges(plain) == plain


@pytest.mark.parametrize(
    ("scripts", "files", "wanted"),
    [
        (
            '"types": "tsc --project ./test/tsconfig.json"',
            ("tsconfig.json", "test/tsconfig.json"),
            "test/tsconfig.json",
        ),
        ('"types": "tsc -p types/tsconfig.json && attw"', ("tsconfig.json",), "tsconfig.json"),
        ('"types": "tsc"', ("tsconfig.json",), "tsconfig.json"),
        ('"test": "tape"', (), ""),
    ],
)
def test_types_are_compiled_as_the_scripts_do(
    tmp_path: Path, scripts: str, files: tuple[str, ...], wanted: str
) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "package.json").write_text(f'{{"scripts": {{{scripts}}}}}')
    for name in files:
        (tmp_path / name).write_text("{}")
    made = check_files(PACKAGE, ("test.js",), tmp_path)
    expected = json.loads(made["repairgym_npm/expected.json"])
    assert expected == {"runner": "tape", "tests": ["test.js"], "tsconfig": wanted}


def test_each_test_of_the_check_can_be_hidden(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    path = "repairgym_npm/package.test.cjs"
    names = cuttable_tests(path, check_files(PACKAGE, (), tmp_path)[path])
    assert len(names) == 10
    assert is_npm_check(tuple(f"{path}::{name}" for name in names))
    assert not is_npm_check(("test/package.test.cjs::a",))
    assert checked(PACKAGE).test_runner.type == "node_test"
