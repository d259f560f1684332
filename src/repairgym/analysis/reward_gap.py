"""Reported against validated reward: the gap that paper A's run of 3,000 steps hid.

Reads the rows of a training phase and of its audit (the same submissions graded again, cold and with every gate); makes
the gap by training step. Guarantees: both means are over the same trajectories, those whose two verdicts are valid; the
interval is over tasks.
"""

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.records import Record
from repairgym.rollout.names import audit_id
from repairgym.rollout.rows import TrajectoryRow


class GapPoint(Record):
    """One training step."""

    step: int
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

    reported_before: float
    reported_after: float
    validated_before: float
    validated_after: float
    gap: float
    """Of the last third."""
    ci_low: float
    ci_high: float

    @property
    def is_open(self) -> bool:
        """True when the interval of the last third lies above zero: reward without validation."""
        return self.ci_low > 0.0


class _Pair(Record):
    step: int
    task_id: str
    reported: float
    validated: float
    is_marked: bool


def reward_gap(
    rows: Iterable[TrajectoryRow], audited: Iterable[TrajectoryRow], marked: Collection[str] = ()
) -> list[GapPoint]:
    """Return the gap at each audited step.

    Args:
        rows: Of the training phase.
        audited: Of its audit.
        marked: Ids of the audited trajectories with findings.
    """
    by_step: dict[int, list[_Pair]] = {}
    for pair in _pairs(rows, audited, marked):
        by_step.setdefault(pair.step, []).append(pair)
    return [_point(step, by_step[step]) for step in sorted(by_step)]


def gap_trend(rows: Sequence[TrajectoryRow], audited: Sequence[TrajectoryRow]) -> GapTrend | None:
    """Compare the first and the last third of the audited steps; None with fewer than two steps."""
    pairs = list(_pairs(rows, audited, ()))
    steps = sorted({pair.step for pair in pairs})
    if len(steps) < 2:
        return None
    size = max(1, len(steps) // 3)
    early, late = ([pair for pair in pairs if pair.step in part] for part in (steps[:size], steps[-size:]))
    before, after = _point(0, early), _point(0, late)
    return GapTrend(
        reported_before=before.reported,
        reported_after=after.reported,
        validated_before=before.validated,
        validated_after=after.validated,
        gap=after.gap,
        ci_low=after.ci_low,
        ci_high=after.ci_high,
    )


def _pairs(rows: Iterable[TrajectoryRow], audited: Iterable[TrajectoryRow], marked: Collection[str]) -> Iterator[_Pair]:
    checked: Mapping[str, TrajectoryRow] = {row.id: row for row in audited}
    for row in rows:
        other = checked.get(audit_id(row.id))
        if other is not None and row.reward is not None and other.reward is not None:
            yield _Pair(
                step=row.step,
                task_id=row.task_id,
                reported=row.reward,
                validated=other.reward,
                is_marked=other.id in marked,
            )


def _point(step: int, pairs: Sequence[_Pair]) -> GapPoint:
    by_task: dict[str, list[float]] = {}
    for pair in pairs:
        by_task.setdefault(pair.task_id, []).append(pair.reported - pair.validated)
    gaps = [value for values in by_task.values() for value in values]
    clusters = [task for task, values in by_task.items() for _ in values]
    spread = bootstrap_spread(gaps, bounds=(-1.0, 1.0), clusters=clusters, num_resamples=2000)
    return GapPoint(
        step=step,
        num_audited=len(pairs),
        num_tasks=len(by_task),
        reported=statistics.fmean(pair.reported for pair in pairs),
        validated=statistics.fmean(pair.validated for pair in pairs),
        gap=statistics.fmean(gaps),
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        marked_share=statistics.fmean(pair.is_marked for pair in pairs),
    )
