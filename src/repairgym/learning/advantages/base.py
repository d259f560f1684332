"""What an estimator is: a pure function from the outcomes of an iteration's groups to advantages.

Reads outcomes, None where the verdict is invalid; makes one advantage per member. Invariants of every estimator:
invalid members enter no mean and no deviation and get 0; a group that teaches nothing gets zeros and says why; the
order is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

DropReason = Literal["", "too_few_valid", "equal_rewards"]


@dataclass(frozen=True)
class Outcome:
    """What an estimator knows of one trajectory."""

    reward: float | None
    """None for an invalid verdict."""
    num_tokens: int = 1
    """Its learned tokens; only means over the tokens of an iteration look at it."""


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of one group in the order of its members."""

    values: tuple[float, ...]
    drop_reason: DropReason
    """Why the group teaches nothing; empty when it does. Count the reasons apart."""

    @property
    def is_dropped(self) -> bool:
        """True when every advantage is 0."""
        return self.drop_reason != ""


class Estimator(Protocol):
    """An advantage estimator; ``config`` is the member of `config.algorithms.AdvantageConfig` it is registered for."""

    def __call__(self, groups: Sequence[Sequence[Outcome]], config: Any, /) -> list[GroupAdvantages]:
        """Advantages of each group, all groups of an iteration at once."""
        ...


def relative_to_group(
    rewards: Sequence[float | None], compare: Callable[[list[float]], list[float]]
) -> GroupAdvantages:
    """Advantages that ``compare`` makes of the valid rewards of one group; it sees at least two, not all equal.

    Fewer than two valid members have nothing to be compared with and get 0, whatever their reward.
    """
    valid = [reward for reward in rewards if reward is not None]
    nothing = (0.0,) * len(rewards)
    if len(valid) < 2:
        return GroupAdvantages(nothing, "too_few_valid")
    if max(valid) == min(valid):
        return GroupAdvantages(nothing, "equal_rewards")
    compared = iter(compare(valid))
    return GroupAdvantages(tuple(0.0 if reward is None else next(compared) for reward in rewards), "")


def minus_mean(rewards: list[float]) -> list[float]:
    """R_i - mean(R)."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def minus_mean_of_others(rewards: list[float]) -> list[float]:
    """R_i - mean of R_j over j != i, which is n / (n - 1) * (R_i - mean(R))."""
    return [centred * len(rewards) / (len(rewards) - 1) for centred in minus_mean(rewards)]


def rewards_of(group: Sequence[Outcome]) -> list[float | None]:
    """The rewards of a group."""
    return [outcome.reward for outcome in group]
