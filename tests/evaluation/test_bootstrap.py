from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from repairgym.evaluation.bootstrap import bootstrap_spread, score_interval


@pytest.mark.parametrize(("num_passed", "num"), [(3, 40), (20, 40), (39, 40)])
def test_the_score_interval_is_wilsons(num_passed, num):
    share = num_passed / num
    found = score_interval(share, math.sqrt(share * (1 - share) / num), 10**6, (0.0, 1.0))
    expected = stats.binomtest(num_passed, num).proportion_ci(method="wilson")
    assert found == pytest.approx((expected.low, expected.high), abs=1e-4)


@pytest.mark.parametrize(("num_passed", "num"), [(0, 12), (12, 12)])
def test_where_all_agree_it_is_clopper_pearson(num_passed, num):
    values = [float(num_passed > 0)] * num
    spread = bootstrap_spread(values, bounds=(0.0, 1.0), num_resamples=10)
    expected = stats.binomtest(num_passed, num).proportion_ci(method="exact")
    assert (spread.ci_low, spread.ci_high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_cluster_proves_nothing():
    spread = bootstrap_spread([0.0, 1.0], bounds=(0.0, 1.0), clusters=["a", "a"])
    assert (spread.ci_low, spread.ci_high) == (0.0, 1.0)


def test_clusters_of_equal_means_are_unanimous():
    spread = bootstrap_spread([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], bounds=(0.0, 1.0), clusters=list("aabbcc"))
    expected = bootstrap_spread([0.5, 0.5, 0.5], bounds=(0.0, 1.0))
    assert (spread.ci_low, spread.ci_high) == (expected.ci_low, expected.ci_high)
    assert spread.ci_low < 0.2 < 0.8 < spread.ci_high


def coverage(num_tasks: int, num_samples: int, rates: tuple[float, float], gain: float, repeats: int) -> float:
    """Share of simulated evaluations whose interval holds the truth; with a gain, of paired differences."""
    generator = np.random.default_rng(num_tasks * 100 + num_samples)
    hits = 0
    for seed in range(repeats):
        chances = generator.beta(*rates, num_tasks)
        values = generator.binomial(num_samples, chances) / num_samples
        truth, bounds = rates[0] / sum(rates), (0.0, 1.0)
        if gain:
            better = generator.binomial(num_samples, np.minimum(1.0, 0.8 * chances + gain)) / num_samples
            values, truth, bounds = better - values, gain - 0.2 * truth, (-1.0, 1.0)
        spread = bootstrap_spread(values.tolist(), bounds=bounds, seed=seed, num_resamples=300)
        hits += spread.ci_low <= truth <= spread.ci_high
    return hits / repeats


def test_coverage_short():
    # the standard error of a share of 0.95 in 250 repetitions is 1.4 points
    assert 0.91 <= coverage(25, 4, (0.5, 1.0), 0.0, 250) <= 0.985
    assert 0.91 <= coverage(40, 2, (2.0, 2.0), 0.2, 250) <= 0.985


@pytest.mark.slow
@pytest.mark.parametrize("num_tasks", [20, 60, 200])
@pytest.mark.parametrize(
    ("num_samples", "rates", "gain"),
    [(1, (3.0, 7.0), 0.0), (4, (0.5, 1.0), 0.0), (10, (0.6, 2.4), 0.0), (1, (2.0, 2.0), 0.2), (4, (2.0, 2.0), 0.2)],
)
def test_coverage_of_nominal_95_percent(num_tasks, num_samples, rates, gain):
    assert 0.93 <= coverage(num_tasks, num_samples, rates, gain, 3000) <= 0.97
