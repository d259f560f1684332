from __future__ import annotations

import random

import pytest
from scipy import stats

from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.evaluation.significance import compare, mcnemar_exact, paired_differences
from repairgym.records import VerdictKind


@pytest.mark.parametrize(("left", "right"), [(5, 0), (1, 9), (7, 12)])
def test_mcnemar_is_the_exact_sign_test(left, right):
    assert mcnemar_exact(left, right) == pytest.approx(stats.binomtest(left, left + right).pvalue)


P, F, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


NAMES = ("rl", "rft")


def draw(chances, num_samples, seed):
    generator = random.Random(seed)
    return {
        str(i): [P if generator.random() < chance else F for _ in range(num_samples)]
        for i, chance in enumerate(chances)
    }


def run(left, right, **more):
    return compare(left, right, names=NAMES, test_set="test-mutations", num_resamples=2000, **more)


def test_pairing_removes_the_difficulty_of_tasks():
    chances = [0.05] * 50 + [0.95] * 50
    left = draw([min(1.0, chance + 0.05) for chance in chances], 20, 1)
    right = draw(chances, 20, 2)
    found = run(left, right)
    alone = bootstrap_spread([sum(k is P for k in kinds) / 20 for kinds in left.values()], bounds=(0, 1))
    assert found.standard_error < alone.standard_error / 3
    assert found.difference == pytest.approx(0.05, abs=0.03)
    assert found.is_clear
    assert "RL solves more than RFT (start of RL) on 100 held-out mutation tasks (+" in found.sentence


def test_no_clear_difference_is_stated():
    found = run(draw([0.5] * 40, 2, 1), draw([0.5] * 40, 2, 2))
    assert found.ci_low < 0 < found.ci_high
    assert not found.is_clear
    assert "No clear difference" in found.sentence


def test_a_worse_policy_is_called_worse():
    found = run(draw([0.1] * 60, 2, 1), draw([0.9] * 60, 2, 2))
    assert found.is_clear
    assert "solves less than" in found.sentence


def test_equal_on_few_tasks_is_not_proof_of_equality():
    verdicts = {str(i): [F] for i in range(5)}
    found = run(verdicts, verdicts)
    assert found.difference == 0.0
    assert found.ci_low < -0.4
    assert found.ci_high > 0.4


def test_only_common_tasks_count():
    found = run({"a": [P], "b": [P], "x": [P], "none": []}, {"a": [F], "b": [F], "y": [P], "none": [P]})
    assert (found.num_tasks, found.difference, found.treatment_value) == (2, 1.0, 1.0)
    assert run({"a": [P]}, {"b": [P]}) is None


def test_invalids_are_failures_when_strict_and_absent_otherwise():
    found = run({"a": [P, INVALID], "b": [P]}, {"a": [F], "b": [INVALID]})
    assert found.difference == pytest.approx((0.5 + 1.0) / 2)
    assert found.difference_without_invalids == pytest.approx(1.0)
    assert run({"a": [INVALID]}, {"a": [P]}).difference_without_invalids is None


def test_clusters_that_agree_within_widen_the_interval():
    left = {f"{package}-{i}": [P if package % 2 else F] for package in range(10) for i in range(10)}
    right = {task: [F] for task in left}
    clusters = {task: task.split("-")[0] for task in left}
    found = run(left, right, clusters=clusters)
    assert found.num_clusters == 10
    assert found.cluster_ci_high - found.cluster_ci_low > 2 * (found.ci_high - found.ci_low)
    assert run(left, right, clusters={}).num_clusters is None
    assert run(left, right, clusters=dict.fromkeys(left, "one")).cluster_ci_low is None


def test_cluster_labels_must_fit():
    with pytest.raises(ValueError, match="2 cluster labels for 1 values"):
        bootstrap_spread([1.0], bounds=(0, 1), clusters=["a", "b"])
    with pytest.raises(ValueError, match="no tasks"):
        bootstrap_spread([], bounds=(0, 1))


@pytest.mark.parametrize(("left", "right", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (1, 9, 22 / 1024), (4, 4, 1.0)])
def test_mcnemar_by_hand(left, right, p):
    assert mcnemar_exact(left, right) == pytest.approx(p)
    assert mcnemar_exact(right, left) == pytest.approx(p)


def test_mcnemar_only_for_single_samples():
    left, right = {str(i): [P] for i in range(6)}, {str(i): [F] for i in range(6)}
    assert run(left, right).mcnemar_p == pytest.approx(2 / 64)
    assert run({**left, "0": [P, P]}, right).mcnemar_p is None


def test_coverage_of_the_interval():
    # the true difference is 0.1; a 95 % interval holds it in about 95 of 100 repetitions
    hits = 0
    for seed in range(100):
        generator = random.Random(seed)
        chances = [generator.uniform(0.1, 0.8) for _ in range(60)]
        found = compare(
            draw([c + 0.1 for c in chances], 3, seed),
            draw(chances, 3, -seed - 1),
            names=NAMES,
            test_set="x",
            num_resamples=500,
        )
        hits += found.ci_low <= 0.1 <= found.ci_high
    assert 88 <= hits <= 100


def test_paired_differences_by_task():
    assert paired_differences({"a": [P, F], "b": [P]}, {"a": [P, P], "c": [P]}) == {"a": -0.5}
