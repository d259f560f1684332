"""Requirements that a first run of a suite names."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.adding.layout import Layout
from repairgym.tasks.adding.suite import joined, missing_requirements
from repairgym.tasks.adding.trial import FileRun, SuiteRun


@pytest.fixture
def layout() -> Layout:
    return Layout(root=".", sources=("own/*.py",), tests=("tests/test_*.py",), import_names=("own",))


def suite_run(*messages: str) -> SuiteRun:
    return SuiteRun(files={"tests/test_a.py": FileRun(messages=messages)}, output_tail="")


def test_missing_modules_and_fixtures_become_requirements(tmp_path: Path, layout: Layout) -> None:
    run = suite_run("No module named 'yaml'", "No module named 'own.part'", "fixture 'mocker' not found")
    assert missing_requirements(run, tmp_path, layout) == {
        "pyyaml": "tests/test_a.py says: No module named 'yaml'",
        "pytest-mock": "tests/test_a.py says: fixture 'mocker' not found",
    }


def test_a_module_that_the_newest_release_lacks_bounds_its_distribution(tmp_path: Path, layout: Layout) -> None:
    missing = missing_requirements(suite_run("No module named 'pkg_resources'"), tmp_path, layout)
    assert list(missing) == ["setuptools<82"]
    assert joined(("attrs", "setuptools"), missing) == ("attrs", "setuptools<82")
    assert joined(("attrs", "setuptools<82"), missing) == ("attrs", "setuptools<82")
