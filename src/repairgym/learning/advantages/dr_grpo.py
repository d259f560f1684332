"""Dr. GRPO (arXiv 2503.20783): the mean is subtracted, the deviation is not divided by.

Dividing by the deviation gives groups of nearly equal rewards, the easiest and the hardest tasks, the largest steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.algorithms import DrGrpoAdvantageConfig
from repairgym.learning.advantages.base import GroupAdvantages, Outcome, minus_mean, relative_to_group, rewards_of


def estimate_dr_grpo(groups: Sequence[Sequence[Outcome]], config: DrGrpoAdvantageConfig) -> list[GroupAdvantages]:
    """A_i = R_i - mean(R) over the valid members of the group."""
    return [relative_to_group(rewards_of(group), minus_mean) for group in groups]
