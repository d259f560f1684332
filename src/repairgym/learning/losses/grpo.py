"""The GRPO loss (DeepSeekMath, arXiv 2402.03300, equation 3; paper B, arXiv 2508.03501, equation 7).

J = 1/N sum over trajectories of 1/L_i sum over tokens of min(rho * A, clip(rho, 1 - eps, 1 + eps) * A): denominator
``trajectory``, or ``turn`` for equation 7 of paper B. Long trajectories have light tokens: a long failure is punished
less per token than a short one, which is what the other denominators are there to change. The paper's KL term is the
option ``kl`` (`losses/kl.py`).
"""

from __future__ import annotations

from repairgym.config.algorithms import GrpoLossConfig
from repairgym.learning.losses.base import LossOutput
from repairgym.learning.losses.clipping import clipped_token_loss
from repairgym.learning.packing.forward import TokenScores


def grpo_loss(scores: TokenScores, normaliser: float, config: GrpoLossConfig) -> LossOutput:
    """Clipped policy-gradient loss whose weights hold 1 / L_i; ``normaliser`` is the number of trajectories."""
    return clipped_token_loss(scores, normaliser, config.eps_low, config.eps_high, config.dual_clip)
