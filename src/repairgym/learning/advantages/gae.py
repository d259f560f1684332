"""Generalised advantage estimation (arXiv 1506.02438) over action tokens, on two levels (RAGEN, arXiv 2504.20073).

Reads the values that a value head gives the learned tokens of one trajectory; makes an advantage per token. From one
token of a turn to the next, the token's discount and lambda hold; from the last token of a turn to the first of the
next, the turn's. Tokens of observations are no steps. With equal numbers on both levels this is plain GAE; with both of
the token's at 1, as published, a turn is one step and its tokens share its return.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repairgym.config.algorithms import GaeAdvantageConfig
from repairgym.learning.advantages.base import GroupAdvantages, Outcome


def estimate_gae(groups: Sequence[Sequence[Outcome]], config: GaeAdvantageConfig) -> list[GroupAdvantages]:
    """Zeros that the trainer replaces, token by token, when the value head has spoken; all valid groups are kept."""
    return [
        GroupAdvantages(
            (0.0,) * len(group), "" if any(outcome.reward is not None for outcome in group) else "too_few_valid"
        )
        for group in groups
    ]


def token_advantages(value: np.ndarray, reward: np.ndarray, turn: np.ndarray, config: GaeAdvantageConfig) -> np.ndarray:
    """A_t = d_t + g_t l_t A_{t+1} with d_t = r_t + g_t V_{t+1} - V_t; g and l as the module says.

    Args:
        value: [N] value of the state before each learned token.
        reward: [N] reward after each token; the trajectory's stands at the last one.
        turn: [N] index of the turn of each token.
        config: Discounts and lambdas.

    Returns:
        [N] float64 advantages, not normalised; ``advantages + value`` is what the value head should have said.
    """
    is_last = np.append(turn[1:] != turn[:-1], False)
    discount = np.where(is_last, config.turn_discount, config.token_discount)
    trace = discount * np.where(is_last, config.turn_lambda, config.token_lambda)
    following = np.append(value[1:], 0.0)
    delta = reward + discount * following - value
    advantages = np.zeros(len(value))
    later = 0.0
    for at in range(len(value) - 1, -1, -1):
        later = float(delta[at] + trace[at] * later)
        advantages[at] = later
    return advantages
