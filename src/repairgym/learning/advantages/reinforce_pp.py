"""REINFORCE++ (arXiv 2501.03262): advantages normalised over the whole iteration instead of each group.

A_i = (b_i - mean(b)) / (std(b) + delta), where b_i is the reward, less its group's baseline when there is one, and mean
and population deviation run over the learned tokens of the iteration: a trajectory counts as often as it has tokens.
With a baseline, groups of equal rewards are dropped first (they would only dilute the deviation); without one, a group
of equal rewards does teach, against the other groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from repairgym.config.algorithms import ReinforcePpAdvantageConfig
from repairgym.learning.advantages.base import (
    GroupAdvantages,
    Outcome,
    minus_mean,
    minus_mean_of_others,
    relative_to_group,
    rewards_of,
)

_COMPARISONS: dict[str, Callable[[list[float]], list[float]]] = {
    "group_mean": minus_mean,
    "leave_one_out": minus_mean_of_others,
}


def estimate_reinforce_pp(
    groups: Sequence[Sequence[Outcome]], config: ReinforcePpAdvantageConfig
) -> list[GroupAdvantages]:
    """Advantages normalised over the tokens of all groups that teach something."""
    raw = [_without_normalisation(group, config.baseline) for group in groups]
    weighted = [
        (value, outcome.num_tokens)
        for group, advantages in zip(groups, raw, strict=True)
        for outcome, value in zip(group, advantages.values, strict=True)
        if outcome.reward is not None and not advantages.is_dropped
    ]
    num_tokens = sum(count for _, count in weighted)
    if not num_tokens:
        return raw
    mean = math.fsum(value * count for value, count in weighted) / num_tokens
    deviation = math.sqrt(math.fsum(count * (value - mean) ** 2 for value, count in weighted) / num_tokens)
    if deviation == 0.0:
        return [_dropped(advantages) for advantages in raw]
    scale = 1.0 / (deviation + config.delta)
    return [_normalised(group, advantages, mean, scale) for group, advantages in zip(groups, raw, strict=True)]


def _without_normalisation(group: Sequence[Outcome], baseline: str) -> GroupAdvantages:
    rewards = rewards_of(group)
    if baseline in _COMPARISONS:
        return relative_to_group(rewards, _COMPARISONS[baseline])
    if all(reward is None for reward in rewards):
        return GroupAdvantages((0.0,) * len(rewards), "too_few_valid")
    return GroupAdvantages(tuple(reward or 0.0 for reward in rewards), "")


def _dropped(advantages: GroupAdvantages) -> GroupAdvantages:
    return GroupAdvantages((0.0,) * len(advantages.values), advantages.drop_reason or "equal_rewards")


def _normalised(group: Sequence[Outcome], raw: GroupAdvantages, mean: float, scale: float) -> GroupAdvantages:
    if raw.is_dropped:
        return raw
    values = zip(group, raw.values, strict=True)
    return GroupAdvantages(
        tuple(0.0 if outcome.reward is None else (value - mean) * scale for outcome, value in values), ""
    )
