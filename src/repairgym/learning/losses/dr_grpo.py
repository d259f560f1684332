"""The loss of Dr. GRPO (arXiv 2503.20783): tokens are summed, and the sum is divided by a constant.

J = 1 / (N * budget) * sum over tokens of min(rho * A, clip(rho, 1 - eps, 1 + eps) * A): denominator ``constant``. Every
token has the same weight in every batch, so length is neither rewarded nor punished. Its advantage has no deviation
either (`advantages/dr_grpo.py`).
"""

from __future__ import annotations

from repairgym.config.algorithms import DrGrpoLossConfig
from repairgym.learning.losses.base import LossOutput
from repairgym.learning.losses.clipping import clipped_token_loss
from repairgym.learning.packing.forward import TokenScores


def dr_grpo_loss(scores: TokenScores, normaliser: float, config: DrGrpoLossConfig) -> LossOutput:
    """Clipped policy-gradient loss; ``normaliser`` is trajectories times the budget of action tokens."""
    return clipped_token_loss(scores, normaliser, config.eps_low, config.eps_high, config.dual_clip)
