"""Group-relative advantages (GRPO as paper B, arXiv 2508.03501, equation 2, uses it) with DAPO's dynamic sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repairgym.config.algorithms import GroupAdvantageConfig
from repairgym.learning.advantages.base import GroupAdvantages, Outcome, minus_mean, relative_to_group, rewards_of


def group_advantages(rewards: Sequence[float | None], *, delta: float = 1e-6) -> GroupAdvantages:
    """A_i = (R_i - mean(R)) / (std(R) + delta), population deviation, over the valid members.

    Args:
        rewards: Reward per member; None for an invalid verdict.
        delta: Keeps the quotient finite.
    """

    def compare(valid: list[float]) -> list[float]:
        centred = minus_mean(valid)
        deviation = math.sqrt(math.fsum(value**2 for value in centred) / len(centred))
        return [value / (deviation + delta) for value in centred]

    return relative_to_group(rewards, compare)


def estimate_group(groups: Sequence[Sequence[Outcome]], config: GroupAdvantageConfig) -> list[GroupAdvantages]:
    """`group_advantages` of each group."""
    return [group_advantages(rewards_of(group), delta=config.delta) for group in groups]
