from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.records import Task
from repairgym.tasks.build.wheel_check import EXPECTED_FILE, RELEASE_TEST
from repairgym.tasks.sight.build_scan import build_sightings, lost_values
from repairgym.testing.scripted import scripted_task

GOLD = """[build-system]
build-backend = "flit_core.buildapi"

[project]
requires-python = ">=3.8"

[project.scripts]
tiny = "tiny.cli:main"
"""
HEAD = "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n"


def broken_build(old: str, new: str, **changes: object) -> Task:
    files = {"pyproject.toml": GOLD.replace(old, new), EXPECTED_FILE: None}
    fields = {
        "fail_to_pass": (f"{RELEASE_TEST}::test_name",),
        "gold_files": {"pyproject.toml": GOLD},
        "base_files": files,
    }
    return scripted_task(**{**fields, **changes})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for path, text in {
        "PKG-INFO": HEAD,
        "pyproject.toml": GOLD,
        EXPECTED_FILE: "{}",
        "README": "tiny, cli, 3.8\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def seen(task: Task, tree: Path) -> set[tuple[str, str]]:
    return {(one.kind, one.path) for one in build_sightings(task, tree, tree / "no-environment")}


@pytest.mark.parametrize(
    ("old", "new", "file", "text"),
    [
        ("tiny.cli:main", "tiny:main", "docs/x.rst", "run tiny.cli:main\n"),
        (">=3.8", ">=3.99", "setup.py", "setup(python_requires='>=3.8')\n"),
        ("flit_core.buildapi", "flit.buildapi", "old.toml", 'build-backend = "flit_core.buildapi"\n'),
    ],
)
def test_a_file_that_states_a_lost_setting_is_seen(old: str, new: str, file: str, text: str, tree: Path) -> None:
    task = broken_build(old, new)
    assert not seen(task, tree)
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).write_text(text)
    assert seen(task, tree) == {("gold setting", file)}
    hidden = task.model_copy(update={"base_files": {**task.base_files, file: None}})
    assert not seen(hidden, tree)


def test_words_about_the_project_are_no_setting(tree: Path) -> None:
    (tree / "README").write_text("tiny needs >=3.8, or so; tiny.cli is a module, and main a function\n")
    assert not seen(broken_build(">=3.8", ">=3.99"), tree)
    assert not seen(broken_build("tiny.cli:main", "tiny:main"), tree)


def test_the_issue_counts(tree: Path) -> None:
    assert seen(broken_build("tiny.cli:main", "tiny:main", issue="not 'tiny.cli:main'"), tree) == {
        ("gold setting", "the issue")
    }


def test_what_tools_say_of_the_release_is_seen(tree: Path) -> None:
    task = broken_build(">=3.8", ">=3.99")
    (tree / "PKG-INFO").write_text(f"{HEAD}Requires-Python: >=3.6\n")
    (tree / "tiny.egg-info").mkdir()
    (tree / "tiny.egg-info" / "requires.txt").write_text("six\n")
    (tree / "dist").mkdir()
    (tree / "dist" / "tiny-1-py3-none-any.whl").write_bytes(b"PK\0")
    shown = task.model_copy(update={"base_files": {"pyproject.toml": task.base_files["pyproject.toml"]}})
    assert seen(shown, tree) == {
        ("release metadata", "PKG-INFO"),
        ("release metadata", "tiny.egg-info/requires.txt"),
        ("built distribution", "dist/tiny-1-py3-none-any.whl"),
        ("expectations", EXPECTED_FILE),
    }


def test_an_environment_with_the_package_is_seen(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / "tiny-1.dist-info").mkdir(parents=True)
    kinds = [one.kind for one in build_sightings(broken_build(">=3.8", ">=3.99"), tree, tmp_path)]
    assert kinds == ["release metadata"]


def test_lost_values_are_those_of_changed_entries() -> None:
    assert dict(lost_values(broken_build(">=3.8", ">=3.99"))) == {">=3.8": ("requirespython", "pythonrequires")}
