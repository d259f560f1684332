"""A task without a repository, and what its tests say in a scripted sandbox: for tests, and to try things out.

Reads nothing; makes tasks and answers of :class:`~repairgym.testing.scripted_sandbox.ScriptedBackend`. ``f`` in ``m.py``
compares with ``<`` where ``<=`` is right. Nothing is run to find that out, so nothing here says anything of real code.
"""

from __future__ import annotations

from typing import Any

from repairgym.records import (
    Certificate,
    Environment,
    Location,
    Provenance,
    Task,
    TestOutcome,
    TestRequest,
    TestResult,
    TestRun,
)
from repairgym.testing.scripted_sandbox import Answer, Files


def scripted_task(task_id: str = "tiny-1", **changes: Any) -> Task:
    """A training task whose repair is one token; ``changes`` are other fields."""
    fields: dict[str, Any] = {
        "source": "mutations",
        "provenance": Provenance(package="tiny", version="1", sdist_sha256=""),
        "issue": "f in m.py is wrong: assert False",
        "base_tree": "",
        "base_files": {"m.py": "def f(a, b):\n    return a < b\n"},
        "environment": Environment(lock="", python="3.11", digest=""),
        "visible_tests": ("test_m.py::test_f",),
        "fail_to_pass": ("test_m.py::test_f",),
        "pass_to_pass": (),
        "test_paths": ("test_m.py",),
        "gold_files": {"m.py": "def f(a, b):\n    return a <= b\n"},
        "gold_patch": "",
        "location": Location(path="m.py", name="f", first_line=1, last_line=2),
        "split": "train",
        "certificate": Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
    }
    return Task(id=task_id, **(fields | changes))


def scripted_answer(message: str = "") -> Answer:
    """Every test passes where ``m.py`` has the right comparison, and fails with ``message`` elsewhere."""

    def answer(files: Files, request: TestRequest) -> TestRun:
        outcome = TestOutcome.PASSED if "<=" in (files.get("m.py") or "") else TestOutcome.FAILED
        results = {name: TestResult(outcome=outcome, message=message) for name in request.test_ids}
        return TestRun(results=results, exit_status=0)

    return answer
