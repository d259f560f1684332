"""The terminal reward of both papers: 1 when passed, else 0 (paper B, arXiv 2508.03501, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.rewards import TerminalRewardConfig
from repairgym.learning.rewards.base import Rewards, raw_rewards
from repairgym.records import Task, Trajectory


class Terminal:
    """The raw reward."""

    def __init__(self, config: TerminalRewardConfig, max_turns: int) -> None:
        """Nothing to choose."""

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """The verdicts' own rewards."""
        return raw_rewards(group)
