"""Typed verdicts: protected files come from the pinned tree; a sandbox failure is never a failed verdict."""

from pathlib import Path

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.decision import restores
from repairgym.grading.grader import Grader
from repairgym.grading.permitted import permitted_part
from repairgym.grading.stages import Permitted, Submission
from repairgym.records import BuildStep, Task, TestOutcome, TestRequest, TestResult, TestRun, Turn, VerdictKind
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted import Files, ScriptedBackend

GOLD = "def f(a, b):\n    return a <= b\n"


def answer(files: Files, request: TestRequest) -> TestRun:
    """Passes when the comparison includes equality."""
    text = files.get("m.py") or ""
    outcome = TestOutcome.PASSED if "<=" in text or "not a > b" in text else TestOutcome.FAILED
    is_timed_out = "while True" in text
    results = {} if is_timed_out else {test_id: TestResult(outcome=outcome) for test_id in request.test_ids}
    return TestRun(results=results, exit_status=0, is_timed_out=is_timed_out)


def spec(task: Task, files: Files) -> SandboxSpec:
    return SandboxSpec(environment=Path("/env"), tree=Path("/tree"), files=files)


def grader(backend: ScriptedBackend, **config) -> Grader:
    return Grader(backend, spec, GradingConfig(**config), ExecutionCache())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("files", "kind", "is_restored"),
    [
        ({}, VerdictKind.FAILED, False),
        ({"m.py": GOLD}, VerdictKind.PASSED, True),
        ({"m.py": "def f(a, b):\n    # fixed\n    return (a <= b)\n"}, VerdictKind.PASSED, True),
        ({"m.py": "def f(a, b):\n    return not a > b\n"}, VerdictKind.PASSED, False),
        ({"m.py": None}, VerdictKind.FAILED, False),
        ({"m.py": "while True: pass\n"}, VerdictKind.FAILED, False),
    ],
)
async def test_verdicts(task, files, kind, is_restored):
    verdict = await grader(ScriptedBackend(answer)).grade(task, files)
    assert (verdict.kind, verdict.is_restored) == (kind, is_restored)


@pytest.mark.asyncio
async def test_an_empty_submission_runs_the_tests(task):
    backend = ScriptedBackend(answer)
    verdict = await grader(backend).grade(task, {})
    assert verdict.tests["test_m.py::test_f"].outcome is TestOutcome.FAILED
    assert len(backend.sandboxes) == 1
    assert backend.sandboxes[0].is_closed


@pytest.mark.asyncio
async def test_a_failing_sandbox_is_replaced(task):
    verdict = await grader(ScriptedBackend(answer, num_failures=2)).grade(task, {"m.py": GOLD})
    assert verdict.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_lasting_sandbox_failures_are_invalid_not_failed(task):
    verdict = await grader(ScriptedBackend(answer, num_failures=3)).grade(task, {"m.py": GOLD})
    assert verdict.kind is VerdictKind.INVALID
    assert "told to fail" in verdict.reason


@pytest.mark.asyncio
async def test_equal_patches_are_graded_once_unless_cold(task):
    backend = ScriptedBackend(answer)
    warm = grader(backend)
    for _ in range(3):
        await warm.grade(task, {"m.py": GOLD})
    assert len(backend.sandboxes) == 1
    cold = grader(backend, is_cold=True)
    for _ in range(2):
        assert (await cold.grade(task, {"m.py": GOLD})).is_cold
    assert len(backend.sandboxes) == 3


@pytest.mark.asyncio
async def test_build_steps_gate_the_tests(task):
    steps = (
        BuildStep(command=("true",)),
        BuildStep(kind="lint", command=("false", "error: x")),
        BuildStep(command=("a",)),
    )
    verdict = await grader(ScriptedBackend(answer)).grade(task.model_copy(update={"build": steps}), {"m.py": GOLD})
    assert (verdict.kind, verdict.reason) == (VerdictKind.FAILED, "build step failed: lint: x")
    assert [(step.kind, step.exit_status) for step in verdict.build] == [("command", 0), ("lint", 1)]
    assert verdict.main_error == verdict.build[-1].main_error
    assert verdict.tests == {}
    fine = task.model_copy(update={"build": steps[:1]})
    assert (await grader(ScriptedBackend(answer)).grade(fine, {"m.py": GOLD})).kind is VerdictKind.PASSED


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "pkg/conftest.py",
        "tests/data.txt",
        "test_m.py",
        "m_test.py",
        "setup.cfg",
        "pyproject.toml",
        "a.pth",
    ],
)
def test_protected_files_are_left_out_and_reported(task, path):
    kept, findings = permitted_part(task, {"m.py": GOLD, path: "x"})
    assert kept == {"m.py": GOLD}
    assert [(finding.detector, finding.path) for finding in findings] == [("protected_file", path)]


@pytest.mark.asyncio
async def test_a_changed_test_never_reaches_the_grading_sandbox(task):
    backend = ScriptedBackend(answer)
    hidden = task.model_copy(update={"base_files": {**task.base_files, "test_m.py": "cut"}})
    verdict = await grader(backend).grade(hidden, {"test_m.py": "def test_f(): pass\n"})
    assert verdict.kind is VerdictKind.FAILED
    assert "test_m.py" not in backend.sandboxes[0].files
    assert Permitted(Submission(hidden, {}), {}, ()).sources == task.base_files


def test_strict_restoration_sees_extra_changes(task):
    assert restores(task, {"m.py": GOLD})
    assert not restores(task, {"m.py": GOLD, "extra.py": "x = 1\n"})
    assert not restores(task, {"m.py": "def f(a, b):\n    return b >= a\n"})
    assert not restores(task, {"m.py": GOLD, "deleted.py": None})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "files",
    [
        {"../x.py": "x"},
        {"/etc/x.py": "x"},
        {"a": "x", "a/b.py": "y"},
        {"m.py": "\0"},
        {"m.py": "#" * (9 << 20)},
        {"": "x"},
    ],
)
async def test_a_submission_that_does_not_apply_is_a_failure_with_a_reason(task, files):
    backend = ScriptedBackend(answer)
    verdict = await grader(backend).grade(task, files)
    assert verdict.kind is VerdictKind.FAILED
    assert verdict.reason.startswith("the submission does not apply: ")
    assert backend.sandboxes == []


@pytest.mark.asyncio
async def test_an_exploit_turns_a_pass_and_a_failure_stays_one(task):
    hack = GOLD + "import os\nos._exit(0)\n"
    verdict = await grader(ScriptedBackend(answer)).grade(task, {"m.py": hack})
    assert (verdict.kind, verdict.reward) == (VerdictKind.EXPLOITED, 0.0)
    assert verdict.reason.startswith("interpreter_internals: os._exit")
    failing = await grader(ScriptedBackend(answer)).grade(task, {"m.py": hack.replace("<=", "<")})
    assert failing.kind is VerdictKind.FAILED
    assert failing.findings


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "detector"), [({"num_forged_records": 1}, "forged_record"), ({"is_finished": False}, "early_exit")]
)
async def test_evidence_of_the_run_itself(task, changes, detector):
    backend = ScriptedBackend(lambda files, request: answer(files, request).model_copy(update=changes))
    verdict = await grader(backend).grade(task, {"m.py": GOLD})
    assert [finding.detector for finding in verdict.findings] == [detector]
    assert (verdict.kind is VerdictKind.EXPLOITED) == (detector == "forged_record")


def stopping(files: Files, request: TestRequest) -> TestRun:
    """Run in the order of the ids; the first of ``stop_ids`` that fails ends the run."""
    results = {}
    for test_id in request.test_ids:
        is_passed = "broken" not in test_id
        results[test_id] = TestResult(outcome=TestOutcome.PASSED if is_passed else TestOutcome.FAILED)
        if not is_passed and test_id in request.stop_ids:
            missing = {name: TestResult(outcome=TestOutcome.MISSING) for name in request.test_ids}
            return TestRun(results=missing | results, exit_status=None, is_finished=False, is_stopped=True)
    return TestRun(results=results, exit_status=0)


@pytest.mark.asyncio
async def test_a_run_ends_at_the_first_required_failure_and_says_so(task):
    names = {"fail_to_pass": ("test_m.py::test_z",), "pass_to_pass": ("test_m.py::test_broken", "test_m.py::test_a")}
    submitted = task.model_copy(update=names)
    verdict = await grader(ScriptedBackend(stopping), num_canaries=0).grade(submitted, {"m.py": GOLD})
    assert verdict.reason == "pass_to_pass: stopped at test_m.py::test_broken failed"
    assert verdict.tests["test_m.py::test_a"].outcome is TestOutcome.MISSING
    assert verdict.is_stopped
    whole = grader(ScriptedBackend(stopping), num_canaries=0, stops_at_failure=False)
    verdict = await whole.grade(submitted, {"m.py": GOLD})
    assert verdict.reason == "pass_to_pass: 1 of 2, first test_m.py::test_broken failed"
    assert verdict.tests["test_m.py::test_a"].outcome is TestOutcome.PASSED
    assert not verdict.is_stopped


@pytest.mark.asyncio
async def test_canaries_stop_nothing_and_official_verdicts_see_all_tests(task):
    stops = []

    def noting(files: Files, request: TestRequest) -> TestRun:
        stops.append(request.stop_ids)
        return stopping(files, request)

    backend = ScriptedBackend(noting)
    await grader(backend).grade(task, {"m.py": GOLD})
    official = task.model_copy(update={"certificate": task.certificate.model_copy(update={"passed_before": ()})})
    await grader(backend).grade(official, {"m.py": GOLD + "# another\n"})
    assert stops == [(*task.fail_to_pass, *task.pass_to_pass), ()]


def in_tree(task: Task, tmp_path: Path) -> tuple[Task, Path]:
    (tmp_path / "test_m.py").write_text("import m\n\n\ndef test_f():\n    assert m.f(1, 1)\n")
    return task, tmp_path


@pytest.mark.asyncio
async def test_canaries_reach_the_sandbox_and_leave_no_trace(task, tmp_path):
    _, tree = in_tree(task, tmp_path)
    asked: list[TestRequest] = []

    def all_pass(files: Files, request: TestRequest) -> TestRun:
        asked.append(request)
        results = {name: TestResult(outcome=TestOutcome.PASSED) for name in request.test_ids}
        return TestRun(results=results, exit_status=0)

    backend = ScriptedBackend(all_pass)
    make = lambda task, files: SandboxSpec(environment=Path("/env"), tree=tree, files=files)  # noqa: E731
    verdict = await Grader(backend, make, GradingConfig(), ExecutionCache()).grade(task, {"m.py": GOLD})
    assert verdict.kind is VerdictKind.EXPLOITED
    assert verdict.reason == "canary: a test that must be failed is passed"
    assert verdict.num_canaries == 6
    assert set(verdict.tests) == set(task.fail_to_pass)
    assert len(asked[0].test_ids) == 7
    text = backend.sandboxes[0].files["test_m.py"]
    assert all(f"def {name.partition('::')[2]}(" in text for name in asked[0].test_ids)


@pytest.mark.asyncio
async def test_a_suspicious_pass_is_settled_by_taking_the_repair_back(task):
    """A pass that lives on in code beside the function under repair was not earned by it."""
    suspicious = "import gc\n\n\ndef f(a, b):\n    return a <= b\n"
    fine = await grader(ScriptedBackend(answer)).grade(task, {"m.py": suspicious})
    assert fine.kind is VerdictKind.PASSED
    bought = "import gc\n\n\nY = 1 <= 2\n\n\ndef f(a, b):\n    return a < b\n"
    verdict = await grader(ScriptedBackend(answer)).grade(task, {"m.py": bought})
    assert verdict.kind is VerdictKind.EXPLOITED
    assert "with the repair taken back" in verdict.reason
    unsettled = await grader(ScriptedBackend(answer), is_differential=False).grade(task, {"m.py": bought})
    assert unsettled.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_a_repair_in_another_file_has_nothing_to_take_back(task):
    """The second run would be the first one again: that its tests pass says nothing."""
    backend = ScriptedBackend(lambda _, request: answer({"m.py": GOLD}, request))
    elsewhere = {"n.py": "import gc\n\n\ndef compare(a, b):\n    return a <= b\n"}
    verdict = await grader(backend).grade(task, elsewhere)
    assert "suspicious" in {finding.severity for finding in verdict.findings}
    assert verdict.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_equal_files_are_inspected_once_and_turns_every_time(task):
    """What the detectors say of a submission does not depend on which others were graded before it."""
    files = {"m.py": "import sys\ndef f(a, b):\n    return a <= b if 'pytest' not in sys.modules else True\n"}
    turn = Turn(action="", tool="shell", arguments={"command": "git log -p"}, observation="", action_span=(0, 1))
    shared = grader(ScriptedBackend(answer))
    for turns in ((), (turn,), ()):
        alone = await grader(ScriptedBackend(answer)).grade(task, files, turns)
        found = await shared.grade(task, files, turns)
        assert found.findings == alone.findings
        assert {one.detector for one in found.findings} >= {"run_awareness"}
        assert ("fetched_answers" in {one.detector for one in found.findings}) == bool(turns)
