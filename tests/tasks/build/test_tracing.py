import asyncio
from pathlib import Path

from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.tracing import trace_suite
from repairgym.testing.scripted import ScriptedBackend


def result(outcome: TestOutcome = TestOutcome.PASSED, duration_s: float = 0.1) -> TestResult:
    return TestResult(outcome=outcome, duration_s=duration_s)


def test_usable_are_passed_quick_tests_of_files(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "test_a.py").write_text("def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n")
    results = {
        "docs": result(TestOutcome.ERROR),  # a folder whose conftest breaks
        "test_a.py": result(),
        "test_a.py::test_one": result(),
        "test_a.py::test_two": result(TestOutcome.FAILED),
        "test_a.py::test_three": result(duration_s=9.0),
    }
    backend = ScriptedBackend(lambda files, request: TestRun(results=results, exit_status=1))
    spec = SandboxSpec(environment=tmp_path, tree=tmp_path)
    suite = asyncio.run(trace_suite(backend, spec, TestRequest(test_ids=("test_a.py",)), max_test_s=1.0))
    assert list(suite.num_executed) == ["test_a.py::test_one"]
