"""Learning curves, and the drift of solve rates, by training step.

Reads rows and metrics of a run; makes points and a `Drift`. Guarantees: invalid samples have no reward and are in no
mean; a step without valid samples has no point; drift is over tasks that were tried in both halves of the steps.
"""

import math
import statistics
from collections.abc import Iterable

from repairgym.evaluation.significance import mcnemar_exact
from repairgym.records import Record
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore

HEALTHY_GAP = 0.005
"""Mean |log-prob gap| below which sampler and learner agree (verl's documentation)."""

BROKEN_GAP = 0.01
"""Mean gap above which the two compute different policies (verl's documentation)."""


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
    """Return the mean over steps of |log-prob gap| between sampler and learner; None if the run stored none.

    The metric is ``name``, or else the first with ``log_prob_gap`` in its name.
    """
    metric = name or find_metric(store, phase, "log_prob_gap", "logprob_gap", "gap")
    points = metric_curve(store, phase, metric) if metric else []
    return statistics.fmean(abs(point.value) for point in points) if points else None


class TaskDrift(Record):
    """One task's solve rate early and late."""

    task_id: str
    num_early: int
    num_late: int
    early: float
    late: float

    @property
    def difference(self) -> float:
        """Late minus early."""
        return self.late - self.early


class Drift(Record):
    """Solve rates in the first and second half of the training steps."""

    first_late_step: int
    tasks: tuple[TaskDrift, ...]
    """Largest loss first."""
    num_risen: int
    num_fallen: int
    mean_difference: float
    sign_p: float
    """Two-sided sign test over the tasks whose rate changed."""


def solve_rate_drift(rows: Iterable[TrajectoryRow]) -> Drift | None:
    """Drift of the tasks that were tried in both halves; None without any."""
    rewarded = [row for row in rows if row.reward is not None]
    steps = sorted({row.step for row in rewarded})
    if len(steps) < 2:
        return None
    middle = steps[len(steps) // 2]
    rewards: dict[str, tuple[list[float], list[float]]] = {}
    for row in rewarded:
        rewards.setdefault(row.task_id, ([], []))[row.step >= middle].append(row.reward or 0.0)
    tasks = [
        TaskDrift(
            task_id=task,
            num_early=len(early),
            num_late=len(late),
            early=statistics.fmean(early),
            late=statistics.fmean(late),
        )
        for task, (early, late) in rewards.items()
        if early and late
    ]
    if not tasks:
        return None
    num_risen, num_fallen = (sum(sign * task_drift.difference > 0 for task_drift in tasks) for sign in (1, -1))
    return Drift(
        first_late_step=middle,
        tasks=tuple(sorted(tasks, key=lambda task_drift: (task_drift.difference, task_drift.task_id))),
        num_risen=num_risen,
        num_fallen=num_fallen,
        mean_difference=statistics.fmean(task_drift.difference for task_drift in tasks),
        sign_p=mcnemar_exact(num_risen, num_fallen),
    )
