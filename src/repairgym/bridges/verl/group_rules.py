"""Selection of groups by the rewards of their valid members: the rule of `learning.advantages`, for verl.

Reads rewards; makes a selection and counts. Imports neither verl nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repairgym.learning.advantages import minus_mean, relative_to_group


@dataclass(frozen=True)
class GroupCounts:
    """Numbers of an iteration's groups, by status."""

    num_kept: int
    num_equal: int
    """All valid members have one reward."""
    num_failed: int
    """Fewer than two valid members."""

    @property
    def num_groups(self) -> int:
        """Number of all groups."""
        return self.num_kept + self.num_equal + self.num_failed

    def as_metrics(self) -> dict[str, float]:
        """Return the counts as metrics of verl's own log."""
        return {
            "groups/num_kept": float(self.num_kept),
            "groups/num_equal": float(self.num_equal),
            "groups/num_failed": float(self.num_failed),
        }


def keep_groups(rewards: Mapping[str, Mapping[str, float]]) -> tuple[set[str], GroupCounts]:
    """Return the groups to learn from, and the counts of each status.

    Where all groups have equal rewards, they stay: their advantages are 0, and verl needs a batch.

    Args:
        rewards: Group -> valid member -> reward; a group without any valid member has none.
    """
    comparable = {group: list(members.values()) for group, members in rewards.items() if len(members) > 1}
    kept = {group for group, values in comparable.items() if max(values) != min(values)}
    counts = GroupCounts(len(kept), len(comparable) - len(kept), len(rewards) - len(comparable))
    return kept or set(comparable), counts


def positive_members(rewards: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the members with a positive advantage: a reward above the mean of their group.

    Args:
        rewards: Group -> valid member -> reward.
    """
    return {
        member
        for members in rewards.values()
        for member, value in zip(members, relative_to_group([*members.values()], minus_mean).values, strict=True)
        if value > 0
    }
