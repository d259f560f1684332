from __future__ import annotations

import math

import pytest

from repairgym.evaluation.accuracy import Rate, VerdictAccuracy, accuracy_of, corrected, describe_accuracy
from repairgym.evaluation.pass_at_k import Estimate
from repairgym.records import Accuracy


def test_rates_are_over_variants_with_intervals_over_tasks() -> None:
    audits = [Accuracy(num_wrong=10, num_accepted=1, num_unknown=2, num_right=3) for _ in range(10)]
    audits += [Accuracy(num_wrong=10, num_accepted=0, num_right=3) for _ in range(30)]
    rates = accuracy_of(audits)
    assert rates is not None
    assert rates.false_accept is not None
    assert (rates.false_accept.num, rates.false_accept.total) == (10, 400)
    assert rates.false_accept.ci_low < 0.025 < rates.false_accept.ci_high
    assert rates.false_reject is not None
    # Nothing was seen in 40 tasks: the exact bound of 40 draws, not of their 120 variants.
    assert rates.false_reject.ci_high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert rates.num_unknown == 20
    assert describe_accuracy(rates).startswith("false accept 2.5 % of 400, 95 % ")


def test_what_was_not_audited_is_said() -> None:
    assert accuracy_of([]) is accuracy_of([None, None]) is None
    assert describe_accuracy(None) == "not audited"
    some = accuracy_of([Accuracy(num_wrong=4, num_accepted=0), None])
    assert describe_accuracy(some).endswith("1 of 2 tasks audited")
    assert describe_accuracy(accuracy_of([Accuracy(num_wrong=0, num_accepted=0)])) == "not audited"


def rate(value: float, half: float) -> Rate:
    return Rate(num=1, total=2, value=value, ci_low=value - half, ci_high=value + half)


def estimate(value: float, half: float) -> Estimate:
    errors = {"standard_error": half / 1.96, "standard_error_runs": None}
    return Estimate(value=value, ci_low=value - half, ci_high=value + half, num_tasks=9, num_samples=9, **errors)


def accuracy(accepted: float, rejected: float, half: float = 0.0) -> VerdictAccuracy:
    rates = {"false_accept": rate(accepted, half), "false_reject": rate(rejected, half)}
    return VerdictAccuracy(num_tasks=9, num_audited=9, num_unknown=0, **rates)


@pytest.mark.parametrize("true", [0.0, 0.3, 1.0])
def test_errors_of_the_verdicts_are_taken_out(true: float) -> None:
    accepted, rejected = 0.05, 0.1
    observed = true * (1 - rejected) + (1 - true) * accepted
    found = corrected(estimate(observed, 0.02), accuracy(accepted, rejected))
    assert found is not None
    assert found.value == pytest.approx(true)
    assert found.ci_high - found.ci_low == pytest.approx(0.04 / 0.85 / (1 if true == 0.3 else 2))
    wider = corrected(estimate(observed, 0.02), accuracy(accepted, rejected, half=0.02))
    assert wider is not None
    assert wider.ci_high - wider.ci_low > found.ci_high - found.ci_low


@pytest.mark.parametrize(
    ("observed", "accepted", "rejected", "expected"),
    [(0.005, 0.05, 0.0, (0.0, 0.0)), (0.99, 0.0, 0.2, (1.0, 1.0))],
)
def test_a_value_beyond_the_bounds_is_not_certain(
    observed: float, accepted: float, rejected: float, expected: tuple[float, float]
) -> None:
    """Fewer passes than wrong repairs alone would have: 0, but as uncertain as any other value."""
    found = corrected(estimate(observed, 0.004), accuracy(accepted, rejected, half=0.01))
    assert found is not None
    power = 1.0 - accepted - rejected
    raw = (observed - accepted) / power
    half = math.hypot(0.004, (1.0 - raw) * 0.01, raw * 0.01) / power
    assert found.value == expected[0]
    assert found.ci_low == pytest.approx(max(0.0, expected[0] - half))
    assert found.ci_high == pytest.approx(min(1.0, expected[0] + half))
    assert found.ci_high - found.ci_low > 0.01


def test_rates_that_say_nothing_correct_nothing() -> None:
    assert corrected(estimate(0.5, 0.1), accuracy(0.6, 0.4)) is None
    assert corrected(estimate(0.5, 0.1), None) is None
    only = accuracy_of([Accuracy(num_wrong=4, num_accepted=0)])
    assert corrected(estimate(0.5, 0.1), only) is None
