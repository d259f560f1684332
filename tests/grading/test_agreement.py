"""Warm and cold verdicts agree."""

import asyncio

import pytest

from repairgym.config.tasks import SplitLimits, TasksConfig
from repairgym.grading.agreement import Agreement, compare_warm_and_cold, one_per_package
from repairgym.records import StepResult, TestOutcome, TestResult, Verdict, VerdictKind
from repairgym.tasks.build.build_tasks import build


def verdict(kind=VerdictKind.PASSED, outcome=TestOutcome.PASSED, exit_status=0, **fields):
    step = StepResult(kind="compile", command=("compile",), exit_status=exit_status, duration_s=0.1)
    tests = {"t.py::test_a": TestResult(outcome=outcome)}
    return Verdict(kind=kind, reason="why", tests=tests, build=(step,), num_canaries=3, grader_version="3", **fields)


def test_equal_verdicts_agree_whatever_they_took():
    assert Agreement("a", "gold", verdict(duration_s=1.0), verdict(duration_s=9.0, is_cold=True)).difference == ""


@pytest.mark.parametrize(
    ("patch", "warm", "cold", "words"),
    [
        ("gold", verdict(), verdict(kind=VerdictKind.FAILED), "expected passed, warm passed (why), cold failed (why)"),
        ("empty", verdict(), verdict(), "expected failed"),
        ("gold", verdict(), verdict(outcome=TestOutcome.SKIPPED), "1 tests differ, first t.py::test_a: warm passed"),
        ("gold", verdict(), verdict().model_copy(update={"num_canaries": 2}), "canaries: warm 3, cold 2"),
        ("gold", verdict(), verdict(exit_status=1), "build steps"),
    ],
)
def test_differences_are_described(patch, warm, cold, words):
    assert words in Agreement("a", patch, warm, cold).difference


def test_a_sample_has_each_package(task):
    other = task.model_copy(update={"provenance": task.provenance.model_copy(update={"package": "other"})})
    tasks = (task, task, other, other, other)
    assert one_per_package(tasks, 1) == (task, other)
    assert len(one_per_package(tasks, 2)) == 4
    assert one_per_package(tasks, 0) == tasks


@pytest.mark.slow
@pytest.mark.network
def test_a_sample_of_the_catalogue_agrees(tmp_path):
    config = TasksConfig(
        packages=("funcy", "idna", "humanize"),
        sources=("mutations",),
        limits=SplitLimits(train=4, validation=2, test=2),
        test_timeout_s=20.0,
        run_timeout_s=60.0,
        num_workers=1,
    )
    tasks = build(config, tmp_path / "tasks").load()
    assert {step.kind for task in tasks for step in task.build} == {"compile", "import"}

    async def compare():
        return [pair async for pairs in compare_warm_and_cold(tasks) for pair in pairs]

    pairs = asyncio.run(compare())
    assert [pair.difference for pair in pairs] == [""] * (3 * len(tasks))
    assert min(pair.warm.num_canaries for pair in pairs) == 3
