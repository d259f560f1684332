from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.adding.trial import MAX_SUITE_S, FileRun, SuiteRun, Trial, judge, summarize
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import Files, ScriptedBackend

PASSED, FAILED, ERROR = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR


def run_of(*outcomes: TestOutcome, num_slow: int = 0, messages: tuple[str, ...] = ()) -> SuiteRun:
    ids = {f"a.py::test_{number}": outcome for number, outcome in enumerate(outcomes)}
    return SuiteRun(files={"a.py": FileRun(outcomes=ids, slow=tuple(ids)[:num_slow], messages=messages)})


def excluded(*runs: SuiteRun) -> str:
    (trial,) = judge(["a.py"], runs)
    return trial.excluded


def test_reasons_to_leave_a_file_out() -> None:
    assert excluded(run_of(PASSED), run_of(PASSED)) == ""
    assert excluded(run_of(PASSED, FAILED)) == ""
    assert "2 of 3 tests fail: ValueError" in excluded(run_of(PASSED, FAILED, ERROR, messages=("ValueError",)))
    assert "1 of 2 tests are flaky" in excluded(run_of(PASSED, PASSED), run_of(PASSED, FAILED))
    assert "slow: 2 of 3 tests" in excluded(run_of(PASSED, PASSED, PASSED, num_slow=2))
    assert excluded(run_of(PASSED, PASSED, PASSED, num_slow=2), run_of(PASSED, PASSED, PASSED, num_slow=1)) == ""
    assert excluded(SuiteRun(files={})) == "no test passes: each is skipped, or the run ended before it"


def test_few_flaky_tests_of_many_are_left_to_the_build() -> None:
    many = [PASSED] * 100
    (trial,) = judge(["a.py"], [run_of(*many), run_of(*many[1:], FAILED)])
    assert (trial.excluded, trial.num_unstable) == ("", 1)


def test_the_slowest_files_go_when_the_suite_takes_too_long() -> None:
    def file(num_tests: int) -> FileRun:
        outcomes = {f"x::test_{number}": PASSED for number in range(num_tests)}
        return FileRun(outcomes=outcomes, duration_s=0.6 * MAX_SUITE_S)

    run = SuiteRun(files={"fast.py": file(900), "slow.py": file(100)})
    by_path = {trial.path: trial.excluded for trial in judge(["fast.py", "slow.py"], [run])}
    assert by_path["fast.py"] == ""
    assert "would bring the suite over" in by_path["slow.py"]
    # A file that changed between releases is worth more than a quick one.
    by_path = {trial.path: trial.excluded for trial in judge(["fast.py", "slow.py"], [run], first=["slow.py"])}
    assert by_path["slow.py"] == ""
    assert by_path["fast.py"]


def test_files_that_cannot_be_collected_have_a_cause_and_no_outcome() -> None:
    results = {
        "a.py::test_x": TestResult(outcome=PASSED, duration_s=0.25),
        "a.py::test_y": TestResult(outcome=FAILED, message="timed out", duration_s=5.0),
        "b.py": TestResult(outcome=ERROR, message="ModuleNotFoundError: No module named 'yaml'"),
    }
    summary = summarize(TestRun(results=results, exit_status=1))
    assert summary.files["a.py"] == FileRun(
        outcomes={"a.py::test_x": PASSED, "a.py::test_y": FAILED},
        messages=("timed out",),
        slow=("a.py::test_x",),
        duration_s=0.25,
    )
    assert summary.files["b.py"] == FileRun(messages=("ModuleNotFoundError: No module named 'yaml'",))


@pytest.mark.asyncio
async def test_a_run_that_met_its_deadline_is_made_again(tmp_path: Path) -> None:
    made: list[bool] = []

    def answer(files: Files, request: TestRequest) -> TestRun:
        made.append(not made)
        return TestRun(results={}, exit_status=None, is_timed_out=made[-1], is_finished=not made[-1])

    spec = SandboxSpec(environment=tmp_path, tree=tmp_path)
    trial = Trial(LayerStore(tmp_path / "layers"), ScriptedBackend(answer), spec, (), (), lambda text: None)
    finished = [(await trial.run(["a.py"], 1)).is_finished for _ in range(3)]
    assert finished == [False, True, True]
    assert made == [True, False]
