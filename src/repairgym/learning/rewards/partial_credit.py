"""Partial credit by tests (named as an idea in paper B, arXiv 2508.03501, section 6; the rule is ours).

A failure earns weight * (share of ``fail_to_pass`` that passes), provided that every ``pass_to_pass`` test still
passes. So the empty patch earns nothing, and a patch that breaks something earns nothing, however much it fixes.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.rewards import PartialCreditConfig
from repairgym.learning.rewards.base import Rewards, shape_each
from repairgym.records import Task, TestOutcome, Trajectory


class PartialCredit:
    """The raw reward, or a share of the weight."""

    def __init__(self, config: PartialCreditConfig, max_turns: int) -> None:
        """Use ``config``; the number of turns plays no part."""
        self._weight = config.weight

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """1 when passed, below ``weight`` otherwise."""

        def value(member: Trajectory) -> float:
            if member.verdict.reward > 0:
                return 1.0
            passed = {i for i, result in member.verdict.tests.items() if result.outcome is TestOutcome.PASSED}
            if not passed.issuperset(task.pass_to_pass):
                return 0.0
            return self._weight * len(passed.intersection(task.fail_to_pass)) / len(task.fail_to_pass)

        return shape_each(group, 0.0, value)
