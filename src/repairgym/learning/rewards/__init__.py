"""Reward shapings by name. Adding one: a config, a file with a `RewardShaping`, a line here, a test by hand values."""

from collections.abc import Callable
from typing import Any

from repairgym.config.rewards import RewardConfig
from repairgym.learning.rewards.base import RewardShaping, raw_rewards
from repairgym.learning.rewards.partial_credit import PartialCredit
from repairgym.learning.rewards.step_penalty import StepPenalty
from repairgym.learning.rewards.suspicious_discount import SuspiciousDiscount
from repairgym.learning.rewards.terminal import Terminal

SHAPINGS: dict[str, Callable[[Any, int], RewardShaping]] = {
    "terminal": Terminal,
    "step_penalty": StepPenalty,
    "partial_credit": PartialCredit,
    "suspicious_discount": SuspiciousDiscount,
}
"""type of the config -> what is made of (config, turns that an episode may have)."""


def make_shaping(config: RewardConfig, max_turns: int) -> RewardShaping:
    """The shaping that ``config`` names, for episodes of at most ``max_turns`` turns."""
    return SHAPINGS[config.type](config, max_turns)


__all__ = ["SHAPINGS", "RewardShaping", "make_shaping", "raw_rewards"]
