"""A training phase by step: learning curves, drift of solve rates, reported against validated reward.

Reads rows and metrics of a run, and the rows of an audit (the same submissions graded again, cold and with every gate);
makes points, a `Drift` and the reward gap that paper A's run of 3,000 steps hid. Guarantees: invalid samples have no
reward and are in no mean; a step without valid samples has no point; drift is over tasks that were tried in both halves
of the steps; both means of a gap are over the same trajectories, those whose two verdicts are valid; its interval is
over tasks.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from repairgym.analysis.behavior import BehaviorMetrics, behavior_metrics, group_by
from repairgym.analysis.episodes import EpisodeFacts
from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.evaluation.significance import mcnemar_exact
from repairgym.records import Record
from repairgym.rollout.names import audit_id
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore


class Point(Record):
    """One point of a curve."""

    step: int
    value: float
    standard_error: float | None = None
    num_samples: int = 0


def reward_curve(rows: Iterable[TrajectoryRow]) -> list[Point]:
    """Mean reward of the valid samples by training step; the error is over tasks, whose samples are alike."""
    steps = group_by((row for row in rows if row.reward is not None), lambda row: row.step)
    return [_point(step, steps[step]) for step in sorted(steps)]


def _point(step: int, rows: Sequence[TrajectoryRow]) -> Point:
    mean, num = statistics.fmean(row.reward or 0.0 for row in rows), len(rows)
    deviations = [sum((row.reward or 0.0) - mean for row in of_task) for of_task in group_by(rows, _task_of).values()]
    # Linearized variance of a ratio over clusters (Cochran 1977, section 11.8 with one stage).
    square = sum(it * it for it in deviations) * len(deviations) / max(1, len(deviations) - 1)
    error = math.sqrt(square) / num if len(deviations) > 1 else None
    return Point(step=step, value=mean, standard_error=error, num_samples=num)


def _task_of(row: TrajectoryRow) -> str:
    return row.task_id


def by_step(episodes: Iterable[EpisodeFacts], measure: Callable[[BehaviorMetrics], float | None]) -> list[Point]:
    """``measure`` of the behavior in each training step; steps without a measure are left out."""
    groups = group_by(episodes, lambda episode: episode.step)
    measured = [(step, measure(behavior_metrics(groups[step]))) for step in sorted(groups)]
    return [Point(step=step, value=value) for step, value in measured if value is not None]


def metric_curve(store: RunStore, phase: str, name: str) -> list[Point]:
    """A stored metric by step, without values that are not finite."""
    return [Point(step=step, value=value) for step, value in store.metrics(phase, name) if math.isfinite(value)]


def find_metric(store: RunStore, phase: str, ending: str) -> list[Point]:
    """The curve of the phase's first metric with ``ending`` in the last part of its path; empty without any."""
    names = [name for name in store.metric_names(phase) if ending in name.rsplit("/", 1)[-1]]
    return metric_curve(store, phase, names[0]) if names else []


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
    sign_p: float
    """Two-sided sign test over the tasks whose rate changed."""


def solve_rate_drift(rows: Iterable[TrajectoryRow]) -> Drift | None:
    """Drift of the tasks that were tried in both halves; None without any."""
    rewarded = [row for row in rows if row.reward is not None]
    steps = sorted({row.step for row in rewarded})
    if len(steps) < 2:
        return None
    middle = steps[len(steps) // 2]
    tasks = []
    for task, some in group_by(rewarded, lambda row: row.task_id).items():
        early, late = ([row.reward or 0.0 for row in some if (row.step >= middle) is part] for part in (False, True))
        if early and late:
            rates = {"early": statistics.fmean(early), "late": statistics.fmean(late)}
            tasks.append(TaskDrift(task_id=task, num_early=len(early), num_late=len(late), **rates))
    if not tasks:
        return None
    num_risen, num_fallen = (sum(sign * task_drift.difference > 0 for task_drift in tasks) for sign in (1, -1))
    return Drift(
        first_late_step=middle,
        tasks=tuple(sorted(tasks, key=lambda task_drift: (task_drift.difference, task_drift.task_id))),
        num_risen=num_risen,
        num_fallen=num_fallen,
        sign_p=mcnemar_exact(num_risen, num_fallen),
    )


class GapPoint(Record):
    """One training step, or several."""

    step: int
    """The first."""
    num_audited: int
    num_tasks: int
    reported: float
    """Mean reward in training."""
    validated: float
    """Mean reward of the same submissions with every gate."""
    gap: float
    ci_low: float
    ci_high: float
    """95 % interval of the gap, bootstrap over tasks."""
    marked_share: float
    """Share of the audited trajectories with a finding, proof or not."""


class GapTrend(Record):
    """The first and the last third of the steps."""

    before: GapPoint
    after: GapPoint

    @property
    def is_open(self) -> bool:
        """True when the interval of the last third lies above zero: reward without validation."""
        return self.after.ci_low > 0.0


class _Pair(NamedTuple):
    step: int
    task_id: str
    reported: float
    validated: float
    is_marked: bool


def reward_gap(
    rows: Iterable[TrajectoryRow], audited: Iterable[TrajectoryRow], marked: Collection[str] = ()
) -> list[GapPoint]:
    """Return the gap at each audited step; ``marked`` are the ids of the audited trajectories with findings."""
    groups = group_by(_pairs(rows, audited, marked), lambda pair: pair.step)
    return [_gap_point(step, groups[step]) for step in sorted(groups)]


def gap_trend(rows: Sequence[TrajectoryRow], audited: Sequence[TrajectoryRow]) -> GapTrend | None:
    """Compare the first and the last third of the audited steps; None with fewer than two steps."""
    pairs = list(_pairs(rows, audited, ()))
    steps = sorted({pair.step for pair in pairs})
    if len(steps) < 2:
        return None
    size = max(1, len(steps) // 3)
    before, after = (
        _gap_point(part[0], [pair for pair in pairs if pair.step in part]) for part in (steps[:size], steps[-size:])
    )
    return GapTrend(before=before, after=after)


def _pairs(rows: Iterable[TrajectoryRow], audited: Iterable[TrajectoryRow], marked: Collection[str]) -> Iterator[_Pair]:
    checked = {row.id: row for row in audited}
    for row in rows:
        other = checked.get(audit_id(row.id))
        if other is not None and row.reward is not None and other.reward is not None:
            yield _Pair(row.step, row.task_id, row.reward, other.reward, other.id in marked)


def _gap_point(step: int, pairs: Sequence[_Pair]) -> GapPoint:
    gaps = [pair.reported - pair.validated for pair in pairs]
    clusters = [pair.task_id for pair in pairs]
    spread = bootstrap_spread(gaps, bounds=(-1.0, 1.0), clusters=clusters, num_resamples=2000)
    return GapPoint(
        step=step,
        num_audited=len(pairs),
        num_tasks=len(set(clusters)),
        reported=statistics.fmean(pair.reported for pair in pairs),
        validated=statistics.fmean(pair.validated for pair in pairs),
        gap=statistics.fmean(gaps),
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        marked_share=statistics.fmean(pair.is_marked for pair in pairs),
    )
