"""Uncertainty of a mean over tasks: bootstrap by task or by cluster of tasks.

Reads one number per task; makes a standard error and a 95 % interval. The standard error is that of the bootstrap; the
interval is Wilson's score interval around it with Student's quantile, because the percentile interval covers too
little with few tasks and rates near 0 or 1 (ADR 025). Guarantees: the same seed gives the same interval; an interval
stays within the bounds of the values and has a positive width: where all tasks agree, it gives the share of other tasks
that the sample may have missed.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from repairgym.records import Record

NUM_RESAMPLES = 10_000
_LEVEL = 0.95
_CHUNK = 500


class Spread(Record):
    """Uncertainty of a mean."""

    standard_error: float
    ci_low: float
    ci_high: float
    """95 % interval."""


def bootstrap_spread(
    values: Sequence[float],
    *,
    bounds: tuple[float, float],
    clusters: Sequence[str] | None = None,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Spread:
    """Return the spread of the mean of ``values`` (one per task, within ``bounds``) over resampled tasks.

    With ``clusters``, one label per task, whole clusters are resampled; with fewer than about ten the interval is too
    narrow.

    Raises:
        ValueError: there are no values, or not one cluster label per value.
    """
    array = np.asarray(values, dtype=np.float64)
    sums, counts = _units(array, clusters)
    if len(sums) == 1 and np.ptp(array) > 0.0:
        return Spread(standard_error=0.0, ci_low=bounds[0], ci_high=bounds[1])
    rates = sums / counts
    if np.ptp(rates) < 1e-12:  # units of equal means say nothing of other units, as tasks of equal values do
        return unanimous(float(rates[0]), len(sums), bounds)
    # Resampling n units understates their variance by (n - 1) / n.
    correction = math.sqrt(len(sums) / (len(sums) - 1))
    error = float(_resampled_means(sums, counts, seed, num_resamples).std(ddof=1)) * correction
    low, high = score_interval(float(array.mean()), error, len(sums), bounds)
    return Spread(standard_error=error, ci_low=low, ci_high=high)


def score_interval(mean: float, error: float, num_units: int, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % score interval (Wilson 1927) of a mean within ``bounds`` with standard error ``error``.

    The mean counts as a proportion of ``num_effective`` draws, the number that gives this standard error.
    """
    width = bounds[1] - bounds[0]
    share, relative = (mean - bounds[0]) / width, error / width
    if relative == 0.0:
        return mean, mean
    num_effective = share * (1.0 - share) / relative**2
    z = float(stdtrit(num_units - 1, (1.0 + _LEVEL) / 2.0))
    factor = 1.0 / (num_effective + z**2)
    center = (num_effective * share + z**2 / 2.0) * factor
    half = z * factor * math.sqrt(num_effective * share * (1.0 - share) + z**2 / 4.0)
    return bounds[0] + width * max(0.0, center - half), bounds[0] + width * min(1.0, center + half)


def unanimous(value: float, num_units: int, bounds: tuple[float, float]) -> Spread:
    """Return the spread where all units agree: a share ``unseen`` of other units is missed with probability 2.5 %.

    For a proportion of 0 or 1 this is the exact (Clopper-Pearson) interval.
    """
    unseen = 1.0 - ((1.0 - _LEVEL) / 2.0) ** (1.0 / num_units)
    low, high = bounds
    return Spread(standard_error=0.0, ci_low=value - unseen * (value - low), ci_high=value + unseen * (high - value))


def _units(values: np.ndarray, clusters: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
    if not len(values):
        raise ValueError("there are no tasks to resample; expected at least one value")
    if clusters is None:
        return values, np.ones_like(values)
    if len(clusters) != len(values):
        raise ValueError(f"got {len(clusters)} cluster labels for {len(values)} values, expected one each")
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    return np.bincount(index, weights=values), np.bincount(index).astype(np.float64)


def _resampled_means(sums: np.ndarray, counts: np.ndarray, seed: int, num_resamples: int) -> np.ndarray:
    """Return means of resampled units, shape [num_resamples], computed in chunks of bounded memory."""
    generator = np.random.default_rng(seed)
    means = []
    for start in range(0, num_resamples, _CHUNK):
        size = (min(_CHUNK, num_resamples - start), len(sums))
        chosen = generator.integers(0, len(sums), size)
        means.append(sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1))
    return np.concatenate(means)
