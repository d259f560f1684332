"""Group-relative advantages (GRPO as paper B, arXiv 2508.03501, equation 2, uses it) with DAPO's dynamic sampling.

Reads the rewards of one group, None where the verdict is invalid; makes advantages. Invariants: invalid members never
enter mean or deviation and get 0; fewer than two valid members give 0; equal rewards give 0 and a dropped group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DropReason = Literal["", "too_few_valid", "equal_rewards"]


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


def group_advantages(rewards: Sequence[float | None], *, delta: float = 1e-6) -> GroupAdvantages:
    """A_i = (R_i - mean(R)) / (std(R) + delta), population deviation, over the valid members.

    Args:
        rewards: Reward per member; None for an invalid verdict.
        delta: Keeps the quotient finite.
    """
    valid = [reward for reward in rewards if reward is not None]
    nothing = (0.0,) * len(rewards)
    if len(valid) < 2:
        return GroupAdvantages(nothing, "too_few_valid")
    if max(valid) == min(valid):
        return GroupAdvantages(nothing, "equal_rewards")
    mean = math.fsum(valid) / len(valid)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in valid) / len(valid))
    values = tuple(0.0 if reward is None else (reward - mean) / (deviation + delta) for reward in rewards)
    return GroupAdvantages(values, "")
