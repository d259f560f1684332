from __future__ import annotations

import pytest

from repairgym.records import TestOutcome, TestResult
from repairgym.tasks.sources.pairs import may_be_alike


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        (("assert 2 == 3", 7), ("assert 2 == 3", 7), True),
        (("assert <A at 0x7f0000000010>", 7), ("assert <A at 0x7f0000000020>", 7), True),
        (("assert 2 == 3", 7), ("NameError: name 'a' is not defined", 7), False),
        (("assert 2 == 3", 9), ("assert 4 == 5", 7), False),
        (("assert 2 == 3", 5), ("assert 4 == 5", 7), True),  # another bug stops the older release before
        (("assert 2 == 3", 0), ("assert 4 == 5", 7), True),
    ],
)
def test_a_failure_is_that_of_the_older_release(older: tuple[str, int], newer: tuple[str, int], expected: bool) -> None:
    results = [TestResult(outcome=TestOutcome.FAILED, message=text, line=line) for text, line in (older, newer)]
    assert may_be_alike(*results) is expected
    assert may_be_alike(None, results[1])
