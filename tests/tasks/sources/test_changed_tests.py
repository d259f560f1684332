"""Test files that changed between two releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.sources.changed_tests import changed_test_files

OLD = {
    "shop/prices.py": "",
    "tests/test_a.py": "a = 1\n",
    "tests/test_b.py": "b = 1\n",
    "tests/deep/test_c.py": "c = 1\n",
    "tests/data.json": "{}",
}


def package(tests: str) -> Package:
    return Package(
        name="shop", split="train", version="1", sdists={"1": "0" * 64}, sources=("shop/*.py",), tests=(tests,)
    )


def write(tree: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    return tree


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tests/test_b.py": "b = 2\n"}, ["tests/test_b.py"]),
        ({"tests/test_new.py": "n = 1\n", "shop/prices.py": "x = 1\n"}, ["tests/test_new.py"]),
        ({"shop/prices.py": "x = 1\n"}, ["tests/deep/test_c.py", "tests/test_a.py", "tests/test_b.py"]),
        (
            {"tests/test_b.py": "b = 2\n", "tests/data.json": "[]"},
            ["tests/deep/test_c.py", "tests/test_a.py", "tests/test_b.py"],
        ),
        (
            {"tests/test_b.py": "b = 2\n", "conftest.py": "x = 1\n"},
            ["tests/deep/test_c.py", "tests/test_a.py", "tests/test_b.py"],
        ),
    ],
)
def test_files_that_changed(tmp_path: Path, changes: dict[str, str], expected: list[str]) -> None:
    older, newer = write(tmp_path / "older", OLD), write(tmp_path / "newer", OLD | changes)
    assert sorted(changed_test_files(package("tests/**/*.py"), older, newer)) == expected


def test_a_helper_of_tests_inside_of_the_package_counts(tmp_path: Path) -> None:
    inside = {f"shop/{path}": text for path, text in OLD.items() if path.startswith("tests")} | {"shop/prices.py": ""}
    older = write(tmp_path / "older", inside)
    change = {"shop/tests/test_a.py": "a = 2\n"}
    newer = write(tmp_path / "newer", inside | change)
    assert changed_test_files(package("shop/tests/test_*.py"), older, newer) == ("shop/tests/test_a.py",)
    write(newer, {"shop/tests/helpers.py": ""})
    assert len(changed_test_files(package("shop/tests/test_*.py"), older, newer)) == 2
