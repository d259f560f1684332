"""Which tasks a policy learned and which it forgot while it was trained.

Reads rows of a training phase; makes a `Drift`. Invariants: only tasks that were tried in both halves of the steps
count; invalid samples have no reward and are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from repairgym.evaluation.significance import mcnemar_exact
from repairgym.records import Record
from repairgym.rollout.rows import TrajectoryRow


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
    num_risen, num_fallen = (sum(sign * one.difference > 0 for one in tasks) for sign in (1, -1))
    return Drift(
        first_late_step=middle,
        tasks=tuple(sorted(tasks, key=lambda one: (one.difference, one.task_id))),
        num_risen=num_risen,
        num_fallen=num_fallen,
        mean_difference=statistics.fmean(one.difference for one in tasks),
        sign_p=mcnemar_exact(num_risen, num_fallen),
    )
