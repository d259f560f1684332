"""Learning curves: reward and measured quantities by training step.

Reads light rows and metrics of a run; makes points. Invariants: invalid samples have no reward and leave the mean and
its number alone; a step without valid samples has no point.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from repairgym.records import Record
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore

HEALTHY_GAP = 0.005
"""Mean |log-prob gap| between sampler and learner below which they agree (verl's documentation)."""

BROKEN_GAP = 0.01
"""Above this the two do not compute the same policy (verl's documentation)."""


class Point(Record):
    """One point of a curve."""

    step: int
    value: float
    standard_error: float | None = None
    num_samples: int = 0


def reward_curve(rows: Iterable[TrajectoryRow]) -> list[Point]:
    """Mean reward of the valid samples by training step; the error treats samples as independent."""
    rewards: dict[int, list[float]] = {}
    for row in rows:
        if row.reward is not None:
            rewards.setdefault(row.step, []).append(row.reward)
    return [_point(step, rewards[step]) for step in sorted(rewards)]


def _point(step: int, values: list[float]) -> Point:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Point(step=step, value=statistics.fmean(values), standard_error=error, num_samples=len(values))


def metric_curve(store: RunStore, phase: str, name: str) -> list[Point]:
    """A stored metric by step, without values that are not finite."""
    return [Point(step=step, value=value) for step, value in store.metrics(phase, name) if math.isfinite(value)]


def find_metric(store: RunStore, phase: str, *endings: str) -> str | None:
    """First metric of the phase whose last path part contains one of ``endings``, in the order of ``endings``."""
    names = store.metric_names(phase)
    for ending in endings:
        for name in names:
            if ending in name.rsplit("/", 1)[-1]:
                return name
    return None


def mean_log_prob_gap(store: RunStore, phase: str, name: str | None = None) -> float | None:
    """Mean over the steps of |log-prob gap| between sampler and learner; None when it was not stored.

    The metric is ``name``, or else the first whose name has ``log_prob_gap`` in it.
    """
    found = name or find_metric(store, phase, "log_prob_gap", "logprob_gap", "gap")
    points = metric_curve(store, phase, found) if found else []
    return statistics.fmean(abs(point.value) for point in points) if points else None


def rolling_mean(points: list[Point], width: int) -> list[Point]:
    """Mean of each point and the ``width - 1`` before it (fewer at the start).

    Raises:
        ValueError: ``width`` is not positive.
    """
    if width < 1:
        raise ValueError(f"got a window of {width} points, expected at least 1")
    windows = (points[max(0, end - width) : end] for end in range(1, len(points) + 1))
    return [Point(step=one[-1].step, value=statistics.fmean(point.value for point in one)) for one in windows]
