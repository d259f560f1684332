from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.build.release_facts import check_files, is_told, plain_metadata
from repairgym.tasks.build.test_files import held_tests
from repairgym.tasks.build.wheel_check import BUILD_TEST, EXPECTED_FILE, RELEASE_TEST, SEALED_FILE, check_text
from repairgym.tasks.mutation.settings_operators import find_edits

HEAD = "Metadata-Version: 2.1\nName: tiny-build\nVersion: 1.0\n"
FULL = f"{HEAD}Requires-Python: >=3.8\nRequires-Dist: six\n\nWords\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_generated_metadata_keep_name_and_version_only(tmp_path: Path) -> None:
    own = {
        "PKG-INFO": FULL,
        ".dist/tiny_build-1.0.dist-info/METADATA": FULL,
        "src/Tiny_Build.egg-info/PKG-INFO": FULL,
        "src/Tiny_Build.egg-info/requires.txt": "six\n",
        "src/Tiny_Build.egg-info/SOURCES.txt": "setup.py\n",
    }
    others = {
        "tests/data/other.egg-info/requires.txt": "six\n",
        "src/vendored/tiny.dist-info/METADATA": FULL,
        "setup.cfg": "[metadata]\nname = tiny-build\n",
        "docs/PKG-INFO": "words of a person",
    }
    plain = plain_metadata(write(tmp_path, own | others), "tiny-build")
    assert plain.keys() == own.keys()
    assert {text for path, text in plain.items() if path.endswith(("PKG-INFO", "METADATA"))} == {HEAD}
    assert {text for path, text in plain.items() if path.endswith(".txt")} == {""}


def test_agents_get_no_expectations_and_no_test_that_reads_them() -> None:
    pinned = {path: check_text(path) for path in (BUILD_TEST, RELEASE_TEST)} | {EXPECTED_FILE: "{}", SEALED_FILE: "{}"}
    seen = check_files(pinned)
    assert seen.keys() == {EXPECTED_FILE, BUILD_TEST}
    assert seen[EXPECTED_FILE] is None
    tests = {name for name in held_tests(seen[BUILD_TEST] or "") if name.startswith("test_")}
    assert tests == {"test_commands_can_be_loaded"}
    assert not check_files({BUILD_TEST: check_text(BUILD_TEST), EXPECTED_FILE: "{}"})


@pytest.mark.parametrize(
    ("files", "operator", "expected"),
    [
        ({"tox.ini": "envlist = py38\npython >= 3.8\n"}, "bad_python_bound", True),
        ({"tox.ini": "python >= 3.81\n"}, "bad_python_bound", False),
        ({"PKG-INFO": FULL}, "bad_python_bound", False),
        ({"README.md": "needs attrs>=20"}, "removed_dependency", False),
        ({}, "bad_build_bound", True),
        ({}, "wrong_name", True),
    ],
)
def test_a_lost_bound_has_to_be_told_elsewhere(
    files: dict[str, str], operator: str, expected: bool, tmp_path: Path
) -> None:
    text = '[build-system]\nrequires = ["flit_core >=3.2"]\n[project]\nname = "tiny"\nrequires-python = ">=3.8"\n'
    text += 'dependencies = ["attrs>=20"]\n'
    tree = write(tmp_path, {"pyproject.toml": text, **files})
    edits = [edit for edit in find_edits("pyproject.toml", text) if edit.operator == operator]
    assert edits
    assert {is_told(tree, edit, text) for edit in edits} == {expected}
