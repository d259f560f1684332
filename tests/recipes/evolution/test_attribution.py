"""Whose fault a failure was, in constructed cases."""

from __future__ import annotations

import asyncio

import pytest

from repairgym.errors import InputError
from repairgym.recipes.evolution.attribution import (
    TASK_FAULTS,
    TRAJECTORY_FAULTS,
    Attribution,
    Failure,
    attribute_failure,
    attribute_failures,
    attribution_lines,
    is_seen,
)
from repairgym.records import Task, TestOutcome, TestResult, Verdict, VerdictKind
from repairgym.testing.scripted import scripted_task

SHOWN, CUT, REGRESSION, GENERATED = (
    "tests/test_a.py::test_shown",
    "tests/test_a.py::test_cut",
    "tests/test_b.py::test_kept",
    "tests/test_generated.py::test_new[1]",
)
OUTCOMES = {"+": TestOutcome.PASSED, "-": TestOutcome.FAILED, "?": TestOutcome.MISSING}


@pytest.fixture
def task() -> Task:
    return scripted_task().model_copy(
        update={
            "base_files": {"m.py": "x = 1\n", "tests/test_a.py": "def test_shown(): ...\n", GENERATED[:23]: None},
            "fail_to_pass": (SHOWN, CUT),
            "pass_to_pass": (REGRESSION, GENERATED),
            "visible_tests": (SHOWN,),
        }
    )


def verdict(outcomes: str, kind: VerdictKind = VerdictKind.FAILED) -> Verdict:
    """A verdict whose four tests have ``outcomes``, e.g. ``+-++``."""
    names = (SHOWN, CUT, REGRESSION, GENERATED)
    tests = {i: TestResult(outcome=OUTCOMES[mark]) for i, mark in zip(names, outcomes, strict=False)}
    return Verdict(kind=kind, reason="why", tests=tests, grader_version="1")


def test_what_the_agent_sees(task: Task) -> None:
    assert [is_seen(task, i) for i in (SHOWN, CUT, REGRESSION, GENERATED)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("first", "again", "reason", "detail"),
    [
        ("-???", "--++", "bug_remains", SHOWN),
        ("-???", "-+-+", "bug_remains", SHOWN),
        ("+-??", "+-++", "visible_tests_too_weak", CUT),
        ("+-??", "+-+-", "visible_tests_too_weak", CUT),
        ("++-?", "++-+", "breaks_passing_tests", REGRESSION),
        ("+---", "+---", "breaks_passing_tests", REGRESSION),
        ("+++-", "+++-", "unseen_tests_broken", GENERATED),
        ("++++", "++++", "rejected_behind_tests", "why"),
        ("-???", "+-++", "gradings_disagree", SHOWN),
        ("++-?", "+++-", "gradings_disagree", REGRESSION),
        ("????", "????", "breaks_the_run", "why"),
        ("", "", "breaks_the_run", "why"),
    ],
)
def test_reasons_by_the_tests(task: Task, first: str, again: str, reason: str, detail: str) -> None:
    attribution = attribute_failure(Failure(task, {"m.py": "x = 2\n"}, verdict(first)), verdict(again))
    assert (attribution.reason, attribution.detail) == (reason, detail)
    assert attribution.fault == ("task" if reason in TASK_FAULTS else "trajectory")
    assert reason in {**TASK_FAULTS, **TRAJECTORY_FAULTS}


@pytest.mark.parametrize(
    ("kind", "reason", "fault"),
    [
        (VerdictKind.PASSED, "gradings_disagree", "task"),
        (VerdictKind.EXPLOITED, "exploited", "trajectory"),
        (VerdictKind.INVALID, "invalid", "neither"),
    ],
)
def test_reasons_by_the_second_verdict(task: Task, kind: VerdictKind, reason: str, fault: str) -> None:
    attribution = attribute_failure(Failure(task, {"m.py": "x = 2\n"}, verdict("-???")), verdict("++++", kind))
    assert (attribution.reason, attribution.fault) == (reason, fault)


@pytest.mark.parametrize(
    ("kind", "reason", "fault"),
    [(VerdictKind.FAILED, "gold_fails", "task"), (VerdictKind.INVALID, "invalid", "neither")],
)
def test_a_repair_that_does_not_pass_is_the_task_s_fault_and_a_lost_sandbox_nobody_s(
    task: Task, kind: VerdictKind, reason: str, fault: str
) -> None:
    class OneVerdict:
        num_graded = 0

        async def grade(self, task, files):
            self.num_graded += 1
            return verdict("----", kind)

    async def attribute() -> list[Attribution]:
        failures = [Failure(task, {"m.py": text}, verdict("-???")) for text in ("a = 1\n", "b = 2\n")]
        return [it async for it in attribute_failures(failures, grader, 1)]

    grader = OneVerdict()
    found = asyncio.run(attribute())
    assert [(it.reason, it.fault) for it in found] == [(reason, fault)] * 2
    assert grader.num_graded == 1


def test_a_test_that_did_not_run_again_does_not_disagree(task: Task) -> None:
    failure = Failure(task, {"m.py": "x"}, verdict("-+++"))
    assert attribute_failure(failure, verdict("-?++")).reason == "bug_remains"
    assert attribute_failure(failure, verdict("--++")).reason == "gradings_disagree"


def test_the_key_is_of_task_and_submission(task: Task) -> None:
    failures = [Failure(task, {"m.py": text}, verdict("-")) for text in ("x = 2\n", "x = 2\n", "x = 3\n")]
    failures.append(Failure(task.model_copy(update={"issue": "another"}), {"m.py": "x = 2\n"}, verdict("-")))
    first, same, *others = [failure.key for failure in failures]
    assert first == same
    assert len({first, *others}) == 3


def test_a_cut_line_is_dropped_and_a_broken_file_named(task: Task, tmp_path) -> None:
    path = tmp_path / "attribution.jsonl"
    file = attribution_lines(path)
    assert file.load() == {}
    known = Attribution(key="a", task_id=task.id, trajectory_ids=("t",), fault="trajectory", reason="no_change")
    file.add(known)
    path.write_bytes(path.read_bytes() + b'{"key": "b", "ta')
    assert file.load() == {"a": known}
    file.add(known.model_copy(update={"key": "c"}))
    assert sorted(file.load()) == ["a", "c"]
    path.write_text('{"key": 1}\n')
    with pytest.raises(InputError, match="line 1 is no Attribution"):
        file.load()
