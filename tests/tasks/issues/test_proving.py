"""Checks of failing tests, proven by runs of pytest on plain folders."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repairgym.records import Task, TestOutcome, TestResult, TestRun
from repairgym.tasks.issues.describing import Failure, Report, describe
from repairgym.tasks.issues.proving import Runner, prove
from repairgym.tasks.issues.specification import Facts
from repairgym.testing.scripted import scripted_task

GOLD = """import os


def size(text):
    return len(text) * int(os.environ.get("SCALE", "1"))
"""
BROKEN = GOLD.replace(' * int(os.environ.get("SCALE", "1"))', "")
TEST_FILE = """import pytest

from m import size


def test_first_check_holds():
    assert size("") == 0
    text = "ab"
    assert size(text) == 2


def test_scale(monkeypatch):
    assert size("a") == 1
    monkeypatch.setenv("SCALE", "3")
    assert size("a") == 3


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_table(monkeypatch, scale):
    with monkeypatch.context() as patch:
        patch.setenv("SCALE", str(scale))
        assert size("a") == scale
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "m.py").write_text(GOLD)
    (folder / "test_m.py").write_text(TEST_FILE)
    return folder


@pytest.fixture
def task() -> Task:
    names = ("test_scale", "test_table[2]", "test_table[3]")
    changes = {
        "source": "releases",
        "base_files": {"m.py": BROKEN, "test_m.py": "import pytest\n"},
        "gold_files": {"m.py": GOLD},
        "issue": "",
        "fail_to_pass": tuple(f"test_m.py::{name}" for name in names),
        "visible_tests": (),
        "labels": {},
    }
    return Task.model_validate(scripted_task().model_dump() | changes)


def runner(tree: Path, place: Path, source: str) -> Runner:
    """Runs pytest in a copy of ``tree`` whose code is ``source``."""

    async def run(texts: dict[str, str | None], ids: tuple[str, ...]) -> TestRun:
        shutil.copytree(tree, place)
        for path, text in {"m.py": source, **texts}.items():
            (place / path).write_text(text or "")
        report = place / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *ids]
        await asyncio.to_thread(subprocess.run, words, cwd=place, stdout=subprocess.DEVNULL, check=False)
        results = {}
        for case in ElementTree.parse(report).iter("testcase"):
            failure = case.find("failure")
            outcome = TestOutcome.PASSED if failure is None else TestOutcome.FAILED
            message = "" if failure is None else failure.attrib["message"].splitlines()[0]
            results[f"test_m.py::{case.attrib['name']}"] = TestResult(outcome=outcome, message=message)
        return TestRun(exit_status=0, results=results)

    return run


@pytest.mark.asyncio
async def test_a_check_that_held_before_or_lost_a_step_is_not_told(tree: Path, task: Task, tmp_path: Path) -> None:
    facts = Facts(task, tree)
    broken, repaired = runner(tree, tmp_path / "broken", BROKEN), runner(tree, tmp_path / "gold", GOLD)
    proofs = await prove(facts, broken, repaired)
    (line, proven), *others = proofs["test_m.py::test_scale"].items()
    assert not others
    assert TEST_FILE.splitlines()[line - 1].strip() == 'assert size("a") == 3'
    # The step that sets the variable binds nothing that the check reads, so that the whole body has to be told.
    assert (proven.is_whole, proven.message) == (True, "AssertionError: assert 1 == 3")
    failures = {i: Failure("AssertionError: assert 1 == 3", 16) for i in task.fail_to_pass}
    issue = describe(task, tree, Report(failures=failures, proofs=proofs)).issue
    assert "monkeypatch.setenv('SCALE', '3')" in issue
    assert "size('a') == 1" not in issue
    assert "With `scale = 2`; or with `scale = 3`, this should run without an error:" in issue


@pytest.mark.asyncio
async def test_a_test_without_a_proven_check_is_told_by_its_name_and_labelled(
    tree: Path, task: Task, tmp_path: Path
) -> None:
    same = runner(tree, tmp_path / "broken", GOLD), runner(tree, tmp_path / "gold", GOLD)
    proofs = await prove(Facts(task, tree), *same)
    assert set(map(len, proofs.values())) == {0}
    told = describe(task, tree, Report(failures={task.fail_to_pass[0]: Failure("assert 1 == 3")}, proofs=proofs))
    assert (told.issue, told.labels["is_underspecified"]) == ("test_scale fails: assert 1 == 3", "true")
