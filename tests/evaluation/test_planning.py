"""Planned power against studies that were drawn: pilots, their variance, and what compare then finds."""

from __future__ import annotations

import random
import statistics

import pytest

from repairgym.errors import InputError
from repairgym.evaluation.planning import (
    Variance,
    assumed_difference,
    describe_variance,
    pilot_difference,
    plan_study,
    tasks_needed,
    variance_of,
    variance_of_difference,
)
from repairgym.evaluation.significance import compare
from repairgym.records import VerdictKind

NUM_SAMPLES = 2


def draw_rates(generator: random.Random, num: int, gain: float) -> list[tuple[float, float]]:
    """True rates of two policies by task: hard and easy ones, and a gain that differs between tasks."""
    rates = []
    for _ in range(num):
        base = generator.betavariate(0.6, 0.6)
        rates.append((base, min(1.0, max(0.0, base + gain * generator.choice((0.0, 1.0, 2.0))))))
    return rates


def draw_verdicts(generator: random.Random, rates: list[float], num_samples: int) -> dict[str, list[VerdictKind]]:
    kinds = (VerdictKind.FAILED, VerdictKind.PASSED)
    return {
        str(task): [kinds[generator.random() < rate] for _ in range(num_samples)] for task, rate in enumerate(rates)
    }


def test_the_parts_of_the_variance_are_those_that_were_drawn() -> None:
    generator = random.Random(1)
    rates = [generator.betavariate(2.0, 3.0) for _ in range(20_000)]
    for num_samples in (2, 5):
        found = variance_of(draw_verdicts(generator, rates, num_samples))
        assert found.between_tasks == pytest.approx(statistics.variance(rates), abs=0.003)
        assert found.of_a_sample == pytest.approx(statistics.fmean(rate * (1 - rate) for rate in rates), abs=0.003)
        assert found.share_between_tasks == pytest.approx(0.17, abs=0.03)


def test_planned_power_is_that_of_200_drawn_studies() -> None:
    generator = random.Random(7)
    gain = 0.06
    pilot = draw_rates(generator, 4000, gain)
    sides = [draw_verdicts(generator, [pair[side] for pair in pilot], NUM_SAMPLES) for side in (0, 1)]
    variance = variance_of_difference(sides[1], sides[0])
    difference = statistics.fmean(after - before for before, after in pilot)
    num_tasks = tasks_needed(variance, NUM_SAMPLES, difference, power=0.8)
    assert num_tasks is not None
    planned = plan_study(variance, num_tasks, NUM_SAMPLES, difference=difference)
    assert planned.power == pytest.approx(0.8, abs=0.005)
    assert planned.detectable_difference <= difference

    seen = 0
    for _ in range(200):
        rates = generator.sample(pilot, num_tasks)
        left, right = (draw_verdicts(generator, [pair[side] for pair in rates], NUM_SAMPLES) for side in (1, 0))
        found = compare(left, right, names=("rl", "rft"), test_set="test-mutations", num_resamples=200)
        seen += found is not None and found.is_clear
    assert seen / 200 == pytest.approx(planned.power, abs=0.05)


def test_more_samples_reduce_the_noise_only() -> None:
    variance = Variance(num_tasks=50, between_tasks=0.02, of_a_sample=0.30)
    errors = [plan_study(variance, 100, number).standard_error for number in (1, 10, 10**9)]
    assert errors == pytest.approx([0.32**0.5 / 10, 0.05**0.5 / 10, 0.02**0.5 / 10])
    assert tasks_needed(variance, 1, 0.05) > tasks_needed(variance, 4, 0.05)
    assert tasks_needed(variance, 1, 1e-5) is None


@pytest.mark.parametrize("kind", [VerdictKind.FAILED, VerdictKind.PASSED])
def test_a_pilot_of_tasks_that_are_all_alike_plans_nothing(kind) -> None:
    for num_samples in (1, 2):
        variance = assumed_difference(variance_of({str(task): [kind] * num_samples for task in range(20)}), 0.8)
        with pytest.raises(InputError, match="20 tasks are all alike"):
            plan_study(variance, 100, 1, difference=0.05)
        with pytest.raises(InputError, match="20 tasks are all alike"):
            tasks_needed(variance, 1, 0.05)


def test_a_pilot_with_one_sample_is_planned_with_one() -> None:
    pilot = draw_verdicts(random.Random(3), [0.5] * 40, 1)
    variance = assumed_difference(variance_of(pilot), 0.8)
    assert variance.of_a_sample is None
    assert "one sample per task" in describe_variance(variance)
    assert (
        plan_study(variance, 40, 1).detectable_difference > 0.2
    )  # nothing is taken off for what cannot be distinguished
    assert "do not correlate" in pilot_difference(pilot, None, None)[1]
    with pytest.raises(InputError, match="--correlation needs a pilot with two samples"):
        pilot_difference(pilot, None, 0.5)
    with pytest.raises(InputError, match="the pilot has one"):
        plan_study(variance, 40, 2)
    with pytest.raises(InputError, match="pilot of 1 tasks"):
        variance_of({"a": [VerdictKind.PASSED]})
    with pytest.raises(InputError, match="study of 1 tasks"):
        plan_study(variance, 1, 1)
