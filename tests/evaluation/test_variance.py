"""Variance in its parts: a published table, drawn components, what the data cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from repairgym.errors import InputError
from repairgym.evaluation.variance import MeanSquares, compare_recipes, split_variance
from repairgym.records import VerdictKind

FAILED, PASSED = VerdictKind.FAILED, VerdictKind.PASSED


def test_mean_squares_are_those_of_shrout_and_fleiss():
    """Psychological Bulletin 86 (1979), tables 2 and 3: six targets, four judges."""
    targets = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    squares = MeanSquares([list(map(float, judge)) for judge in zip(*targets, strict=True)])
    assert (squares.tasks, squares.seeds, squares.interaction) == pytest.approx((11.24, 32.49, 1.02), abs=0.005)


def draw_runs(num_seeds: int, num_samples: int, num_tasks: int, seed: int) -> dict[str, dict[str, list[VerdictKind]]]:
    generator = np.random.default_rng(seed)
    base, shifts = generator.uniform(0.25, 0.75, num_tasks), generator.normal(0.0, 0.06, num_seeds)
    runs = {}
    for number, shift in enumerate(shifts):
        rates = base + shift + generator.normal(0.0, 0.08, num_tasks)
        passed = generator.random((num_tasks, num_samples)) < rates[:, None]
        runs[str(number)] = {
            str(task): [PASSED if value else FAILED for value in row] for task, row in enumerate(passed)
        }
    return runs


def test_the_parts_are_those_that_were_drawn():
    parts = split_variance(draw_runs(60, 3, 600, 4))
    assert parts.task == pytest.approx(0.5**2 / 12, abs=0.002)
    assert parts.seed == pytest.approx(0.06**2, abs=0.0015)
    assert parts.task_by_seed == pytest.approx(0.08**2, abs=0.002)
    assert parts.sample == pytest.approx(0.25 - 0.5**2 / 12 - 0.06**2 - 0.08**2, abs=0.01)
    assert parts.total == pytest.approx(0.25, abs=0.01)
    assert parts.ci_low < parts.mean < parts.ci_high


def test_the_part_of_the_grader_is_taken_from_that_of_samples():
    runs = draw_runs(2, 3, 50, 1)
    without = split_variance(runs)
    parts = split_variance(runs, [(PASSED, PASSED)] * 80 + [(PASSED, FAILED)] * 20)
    assert parts.grader == pytest.approx(0.1)
    assert without.grader is None
    assert parts.sample == pytest.approx((without.sample or 0.0) - 0.1)
    assert split_variance(runs, [(PASSED, PASSED)] * 5).grader == 0.0


def test_what_the_data_cannot_show_is_not_zero():
    alone = split_variance({"a": {"t": [PASSED, FAILED], "u": [FAILED, FAILED]}})
    assert (alone.seed, alone.task_by_seed) == (None, None)
    single = split_variance({"a": {"t": [PASSED], "u": [FAILED]}, "b": {"t": [PASSED], "u": [PASSED]}})
    assert single.sample is None
    with pytest.raises(InputError, match="got 1 tasks"):
        split_variance({"a": {"t": [PASSED], "u": [FAILED]}, "b": {"t": [PASSED]}})


def test_one_sample_does_not_tell_seeds_from_samples():
    generator = np.random.default_rng(0)
    coins = {
        str(seed): {str(task): [PASSED if draw else FAILED] for task, draw in enumerate(generator.random(40) < 0.5)}
        for seed in range(3)
    }
    parts = split_variance(coins)
    assert (parts.sample, parts.task_by_seed) == (None, None)
    assert parts.task is not None
    assert split_variance({"a": coins["0"]}).task is None


def test_no_interval_is_a_point():
    low, high = MeanSquares([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).interval((0.0, 1.0))
    assert low < 1 / 3 < high


def test_unanimous_tasks_prove_little_of_others():
    run = {task: [PASSED, PASSED] for task in "abc"}
    parts = split_variance({"0": run, "1": run, "2": run})
    assert (parts.ci_low, parts.ci_high) == pytest.approx((0.025 ** (1 / 3), 1.0))  # Clopper-Pearson, three of three
    failed = {task: [FAILED] for task in "ab"}
    row = compare_recipes([{task: [PASSED] for task in "ab"}] * 3, [failed] * 3, names=("good", "bad"))
    assert (row.ci_low, row.ci_high) == pytest.approx((1.0 - 2.0 * (1.0 - 0.025**0.5), 1.0))
    assert (row.seeds_ci_low, row.seeds_ci_high) == (row.ci_low, row.ci_high)
    same = compare_recipes([failed], [failed], names=("bad", "bad"))
    assert same.ci_low < -0.5 < 0.5 < same.ci_high


def test_recipes_are_compared_task_by_task_and_seed_by_seed():
    runs = list(draw_runs(3, 2, 40, 5).values())
    better = [{task: [PASSED, kinds[1]] for task, kinds in run.items()} for run in runs]
    row = compare_recipes(better, runs, names=("better", "plain"))
    gains = np.array([[(run[task][0] is FAILED) / 2 for task in sorted(run)] for run in runs])
    assert (row.num_tasks, row.num_seeds) == (40, 3)
    assert row.by_seed == pytest.approx(gains.mean(axis=1))
    assert row.difference == pytest.approx(row.treatment_value - row.reference_value) == pytest.approx(gains.mean())
    # Over new tasks alone it is the interval of a mean of paired differences (Student).
    half = 2.0227 * gains.mean(axis=0).std(ddof=1) / 40**0.5
    assert (row.ci_low, row.ci_high) == pytest.approx((row.difference - half, row.difference + half), abs=1e-4)
    assert row.seeds_ci_low is not None
    two = compare_recipes(better[:2], runs[:2], names=("better", "plain"))
    assert (two.seeds_ci_low, two.seeds_ci_high) == (None, None)
    with pytest.raises(InputError, match="got 2 runs of better and 3 of plain"):
        compare_recipes(better[:2], runs, names=("better", "plain"))


def test_the_interval_over_new_seeds_sees_seeds_that_the_one_over_tasks_does_not():
    generator = np.random.default_rng(8)
    is_inside = np.zeros((200, 2), bool)
    for study in is_inside:
        shifts = generator.normal(0.0, 0.06, 3)
        sides = [
            [
                {
                    str(task): [PASSED if draw else FAILED]
                    for task, draw in enumerate(generator.random(100) < 0.5 + rate)
                }
                for rate in rates
            ]
            for rates in (shifts, [0.0] * 3)
        ]
        row = compare_recipes(sides[0], sides[1], names=("a", "b"))
        assert row.seeds_ci_low is not None
        assert row.seeds_ci_high is not None
        study[:] = row.ci_low <= 0.0 <= row.ci_high, row.seeds_ci_low <= 0.0 <= row.seeds_ci_high
    over_tasks, over_seeds = is_inside.mean(axis=0)
    assert over_seeds >= 0.93 > over_tasks
