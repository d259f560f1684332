"""Task folders: no link disappears, and scripts restore tests from whatever history an image has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from repairgym.tasks.formats.base import RecordError
from repairgym.tasks.formats.folders import WORK_FOLDER, read_folder, restore_lines
from repairgym.tasks.unbuilt import UnbuiltTask

PINNED, EDITED = "def test_x():\n    assert False\n", "def test_x(): pass\n"


@pytest.mark.parametrize("name", ["package", "below/package"])
def test_a_link_to_a_folder_is_refused_too(tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text("")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "real")
    with pytest.raises(RecordError, match="package is a link"):
        read_folder(tmp_path)


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "test x.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize("is_commit_there", [True, False])
@pytest.mark.parametrize("is_committed", [True, False])
def test_tests_are_those_of_the_base_commit_also_where_the_history_was_squashed(
    tmp_path: Path, is_commit_there: bool, is_committed: bool
) -> None:
    """Mirrors of SWE-smith have one commit of their own, not the one that the record names."""
    git(tmp_path, "init", "-q")
    base = commit(tmp_path, PINNED)
    (tmp_path / "tests" / "test_new.py").write_text(EDITED)
    (tmp_path / "tests" / "test x.py").write_text(EDITED)
    if is_committed:
        commit(tmp_path, EDITED)
    task = UnbuiltTask(
        id="t",
        format="swe_smith",
        issue="",
        gold_patch="",
        base_commit=base if is_commit_there else "abcdef12",
        fail_to_pass=("tests/test x.py::test_x", "tests/test_new.py::test_x"),
    )
    lines = restore_lines(task).replace(WORK_FOLDER, str(tmp_path))
    subprocess.run(["bash", "-euo", "pipefail", "-c", lines], check=True)
    assert (tmp_path / "tests" / "test x.py").read_text() == PINNED
    assert not (tmp_path / "tests" / "test_new.py").exists()
