"""How much better a trajectory was than its group."""

from mendwright.learning.advantages.group import GroupAdvantages, group_advantages

__all__ = ["GroupAdvantages", "group_advantages"]
