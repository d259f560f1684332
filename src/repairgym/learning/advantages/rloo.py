"""RLOO (arXiv 2402.14740): REINFORCE with the leave-one-out baseline.

The baseline of a member does not contain its own reward, so the gradient is unbiased. It is Dr. GRPO's advantage times
n / (n - 1), n the valid members of the group.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.algorithms import RlooAdvantageConfig
from repairgym.learning.advantages.base import (
    GroupAdvantages,
    Outcome,
    minus_mean_of_others,
    relative_to_group,
    rewards_of,
)


def estimate_rloo(groups: Sequence[Sequence[Outcome]], config: RlooAdvantageConfig) -> list[GroupAdvantages]:
    """A_i = R_i - mean of the other valid members' rewards."""
    return [relative_to_group(rewards_of(group), minus_mean_of_others) for group in groups]
