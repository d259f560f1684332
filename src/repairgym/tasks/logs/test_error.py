"""The main error of a run of tests: the first test that did not pass.

Reads a test run; makes a :class:`~repairgym.records.MainError` whose path is the id of the test.
"""

from __future__ import annotations

from collections.abc import Iterable

from repairgym.records import MainError, TestOutcome, TestRun
from repairgym.tasks.logs.error_class import classify


def first_test_error(run: TestRun, test_ids: Iterable[str]) -> MainError | None:
    """The error of the first of ``test_ids`` that did not pass; None when all passed."""
    failed = next((test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED), None)
    return None if failed is None else error_of_test(run, failed)


def error_of_test(run: TestRun, test_id: str) -> MainError:
    """What a test that did not pass says."""
    result = run.results.get(test_id)
    message = (result.message if result else "") or str(run.outcome(test_id))
    return MainError(error_class=classify(message, "test"), message=message, path=test_id)
