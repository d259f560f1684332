"""Grading: verdicts are typed, protected files come from the pinned tree, sandbox trouble is never a failure."""

from pathlib import Path

import pytest

from mendwright.config.pipeline import GradingConfig
from mendwright.grading.grader import Grader, restores
from mendwright.grading.permitted import agent_base_sources, permitted_part
from mendwright.records import Task, TestOutcome, TestRequest, TestResult, TestRun, VerdictKind
from mendwright.sandbox.base import SandboxSpec
from mendwright.sandbox.cache import ExecutionCache
from mendwright.sandbox.scripted import Files, ScriptedBackend

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
async def test_trouble_is_retried_in_a_fresh_sandbox(task):
    verdict = await grader(ScriptedBackend(answer, num_failures=2)).grade(task, {"m.py": GOLD})
    assert verdict.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_lasting_trouble_is_invalid_not_failed(task):
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
    broken = task.model_copy(update={"build": (("true",), ("false", "x"))})
    verdict = await grader(ScriptedBackend(answer)).grade(broken, {"m.py": GOLD})
    assert (verdict.kind, verdict.reason) == (VerdictKind.FAILED, "build step failed: false x")
    assert [step.exit_status for step in verdict.build] == [0, 1]
    fine = task.model_copy(update={"build": (("true",),)})
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
    assert agent_base_sources(hidden) == task.base_files


def test_strict_restoration_sees_extra_changes(task):
    assert restores(task, {"m.py": GOLD})
    assert not restores(task, {"m.py": GOLD, "extra.py": "x = 1\n"})
    assert not restores(task, {"m.py": "def f(a, b):\n    return b >= a\n"})
