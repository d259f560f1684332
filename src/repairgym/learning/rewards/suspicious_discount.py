"""A discount for successes in doubt, in the form of PS-GRPO (URSA, arXiv 2501.04686).

There a process reward model marks a sudden drop in a correct solution, which is then worth 1 - gamma; here the mark is
a suspicious finding of the exploit detectors. Failures earn nothing either way, so the marks can never be earned by
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.rewards import SuspiciousDiscountConfig
from repairgym.learning.rewards.base import Rewards, shape_each
from repairgym.records import Task, Trajectory


class SuspiciousDiscount:
    """1 for a success, 1 - discount for a suspicious one, 0 for a failure."""

    def __init__(self, config: SuspiciousDiscountConfig, max_turns: int) -> None:
        """Use ``config``; the number of turns plays no part."""
        self._discount = config.discount

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Between 0 and 1."""

        def value(member: Trajectory) -> float:
            is_suspicious = any(finding.severity == "suspicious" for finding in member.verdict.findings)
            return member.verdict.reward * (1.0 - self._discount if is_suspicious else 1.0)

        return shape_each(group, 0.0, value)
