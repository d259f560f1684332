"""What a reward shaping is, and what every one of them keeps.

Reads the graded trajectories of one group; makes one number per member, None where the verdict is invalid. Invariants:
an episode that was caught at an exploit gets the lowest number that its shaping can give, so its advantage is never
positive; shapings are pure, so the shaped rewards of a stored run follow from its trajectories and its config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from repairgym.records import Task, Trajectory, Verdict, VerdictKind

Rewards = tuple[float | None, ...]
"""One per member of a group; None: invalid, in no mean and no deviation."""


class RewardShaping(Protocol):
    """Turns the verdicts of one group into rewards."""

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Rewards of ``group``, whose members all tried ``task``, in its order."""
        ...


def raw_rewards(group: Sequence[Trajectory]) -> Rewards:
    """The verdicts' own rewards: 1 when passed, else 0."""
    return tuple(member.verdict.reward if member.verdict.is_valid else None for member in group)


def shape_each(group: Sequence[Trajectory], lowest: float, value: Callable[[Trajectory], float]) -> Rewards:
    """``value`` of each valid, honest member; ``lowest`` where an exploit was found."""

    def one(member: Trajectory) -> float | None:
        if not member.verdict.is_valid:
            return None
        return lowest if is_exploit(member.verdict) else value(member)

    return tuple(one(member) for member in group)


def is_exploit(verdict: Verdict) -> bool:
    """True when an exploit was found, also one that did not help: a failure stays *failed* then."""
    return verdict.kind is VerdictKind.EXPLOITED or any(one.severity == "exploit" for one in verdict.findings)
