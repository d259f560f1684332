from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.evaluation.pass_at_k import (
    NO_LABEL,
    by_label,
    exact_match_rate,
    labels_of,
    mean_pass_at_k,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
    share,
    standard_error_over_runs,
    verdicts_by_task,
    without_invalids,
)
from repairgym.records import VerdictKind

P, F, X, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.EXPLOITED, VerdictKind.INVALID


def test_groups_of_a_label_add_up_to_all_tasks(task):
    labels = {
        "a": labels_of(task),
        "b": labels_of(task.model_copy(update={"labels": {"difficulty": "2"}})),
    }
    found = by_label({"a": [P, X], "b": [F, INVALID], "c": [P]}, labels, num_resamples=100)
    by_difficulty = {one.value: one for one in found if one.label == "difficulty"}
    assert {value: one.pass_at_1.num_tasks for value, one in by_difficulty.items()} == {NO_LABEL: 2, "2": 1}
    assert by_difficulty["2"].invalid_rate == 0.5
    assert {one.value: one.pass_at_1.value for one in found if one.label == "package"} == {"tiny": 0.25, NO_LABEL: 1.0}


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(num_samples, data):
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    samples = [True] * num_correct + [False] * (num_samples - num_correct)
    for score, of_subset in ((pass_at_k, any), (pass_hat_k, all)):
        expected = statistics.fmean(of_subset(subset) for subset in itertools.combinations(samples, k))
        assert score(num_samples, num_correct, k) == pytest.approx(expected)


def test_too_few_samples_are_unscored():
    assert pass_at_k(3, 3, 4) is None
    result = mean_pass_at_k({"a": [P, P], "b": [F, P, F, F]}, 3)
    assert (result.value, result.all_value, result.num_tasks) == (pytest.approx(0.75), 0.0, 1)
    assert mean_pass_at_k({"a": [P]}, 2).value is None


@pytest.mark.parametrize("arguments", [(2, 3, 1), (2, 1, 0), (2, -1, 1)])
def test_impossible_counts_are_rejected(arguments):
    with pytest.raises(ValueError, match="expected k >= 1"):
        pass_at_k(*arguments)


def test_pass_at_1_weighs_tasks_equally():
    estimate = pass_at_1({"a": [P, P, P, P], "b": [F]})
    assert estimate.value == 0.5
    assert (estimate.num_tasks, estimate.num_samples) == (2, 5)
    assert pass_at_1({}) is None


def test_strict_counts_invalids_and_exploits_as_not_passed():
    verdicts = {"a": [P, INVALID], "b": [INVALID], "c": [X, P]}
    assert pass_at_1(verdicts).value == pytest.approx((0.5 + 0.0 + 0.5) / 3)
    valid = without_invalids(verdicts)
    assert valid == {"a": [P], "c": [X, P]}
    assert pass_at_1(valid).value == pytest.approx(0.75)
    assert share(verdicts, INVALID) == pytest.approx(2 / 5)
    assert share({}, X) == 0.0


def test_interval_agrees_with_the_normal_one_for_many_tasks():
    verdicts = {str(i): [P if i % 4 == 0 else F] for i in range(400)}
    estimate = pass_at_1(verdicts)
    expected = math.sqrt(0.25 * 0.75 / 400)
    assert estimate.standard_error == pytest.approx(expected, rel=0.05)
    assert estimate.ci_low == pytest.approx(0.25 - 1.96 * expected, abs=0.005)
    assert estimate.ci_high == pytest.approx(0.25 + 1.96 * expected, abs=0.005)
    assert estimate == pass_at_1(verdicts)


@pytest.mark.parametrize(("kind", "low", "high"), [(F, 0.0, 0.3085), (P, 0.6915, 1.0)])
def test_agreeing_tasks_do_not_mean_certainty(kind, low, high):
    # Clopper-Pearson for 0 and 10 of 10
    estimate = pass_at_1({str(i): [kind] for i in range(10)})
    assert estimate.ci_low == pytest.approx(low, abs=1e-4)
    assert estimate.ci_high == pytest.approx(high, abs=1e-4)


def test_standard_error_over_runs_is_that_of_the_run_means():
    verdicts = {"a": [P, P, F], "b": [F, P, F]}  # run means 0.5, 1.0, 0.0
    assert standard_error_over_runs(verdicts) == pytest.approx(0.5 / math.sqrt(3))
    assert standard_error_over_runs({"a": [P, F], "b": [P]}) is None
    assert standard_error_over_runs({}) is None


def test_rows_are_ordered_by_seed_and_exact_match_is_strict(store, trajectory_maker):
    kinds = {("a", 1): F, ("a", 0): P, ("b", 0): INVALID, ("b", 1): P}
    for (task, seed), kind in kinds.items():
        trajectory = trajectory_maker(f"{task}{seed}", task, kind=kind, seed=seed, group_id=task)
        store.add_trajectory(trajectory, phase="eval/rl/x", step=0, split="test")
    assert verdicts_by_task(store.rows()) == {"a": [P, F], "b": [INVALID, P]}
    assert exact_match_rate(store.rows()) == 0.5
    assert exact_match_rate([row for row in store.rows() if row.verdict is INVALID]) is None
