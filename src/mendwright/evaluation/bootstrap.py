"""How sure we are of a mean over tasks: bootstrap by task or by cluster of tasks.

Reads one number per task; makes a standard error and a 95 % interval. Invariants: the same seed gives the same
interval; an interval is never empty of doubt: where all tasks agree, and resampling them could only agree again, the
interval says how many tasks of another kind may have been missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mendwright.records import Record

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
    """Spread of the mean of ``values`` (one per task), percentile bootstrap over tasks.

    Args:
        values: One number per task, within ``bounds``.
        bounds: Smallest and largest value that a task can have.
        clusters: One label per task; whole clusters are resampled. With fewer than about ten clusters the interval
            is too narrow; read it as a lower limit of the doubt.
        seed: Of the resampling.
        num_resamples: Number of bootstrap samples.

    Raises:
        ValueError: there are no values, or not one cluster label per value.
    """
    array = np.asarray(values, dtype=np.float64)
    sums, counts = _units(array, clusters)
    if np.ptp(array) == 0.0:
        return _unanimous(float(array[0]), len(sums), bounds)
    means = _resampled_means(sums, counts, seed, num_resamples)
    tail = (1.0 - _LEVEL) / 2.0
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return Spread(standard_error=float(means.std(ddof=1)), ci_low=float(low), ci_high=float(high))


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
    """Means of resampled units, shape [num_resamples]; in chunks, so that memory stays bounded."""
    generator = np.random.default_rng(seed)
    means = []
    for start in range(0, num_resamples, _CHUNK):
        size = (min(_CHUNK, num_resamples - start), len(sums))
        chosen = generator.integers(0, len(sums), size)
        means.append(sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1))
    return np.concatenate(means)


def _unanimous(value: float, num_units: int, bounds: tuple[float, float]) -> Spread:
    """All units agree: a share ``unseen`` of other units would have stayed out of sight with probability 2.5 %.

    For a proportion of 0 or 1 this is the exact (Clopper-Pearson) interval.
    """
    unseen = 1.0 - ((1.0 - _LEVEL) / 2.0) ** (1.0 / num_units)
    low, high = bounds
    return Spread(standard_error=0.0, ci_low=value - unseen * (value - low), ci_high=value + unseen * (high - value))
