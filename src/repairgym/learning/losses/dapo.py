"""The DAPO loss of paper B (arXiv 2508.03501, equation 8): clip-higher, token-level, no KL term.

J = 1 / (sum of action tokens) * sum over tokens of min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A), with
rho = pi(token) / pi_old(token) (equation 6). The loss is -J. Denominator: ``token`` (or ``group``), see
`learning/denominators.py`.
"""

from __future__ import annotations

from repairgym.config.algorithms import DapoLossConfig
from repairgym.learning.losses.base import LossOutput
from repairgym.learning.losses.clipping import clipped_token_loss
from repairgym.learning.packing.forward import TokenScores


def dapo_loss(scores: TokenScores, normaliser: float, config: DapoLossConfig) -> LossOutput:
    """Clipped policy-gradient loss with a higher upper bound.

    Args:
        scores: [N] tokens with ``log_prob`` (gradient), ``old_log_prob``, ``advantage`` and ``weight``.
        normaliser: The number of action tokens of the whole optimiser batch.
        config: Bounds.

    Returns:
        The loss share and the metrics of `clipping.clip_metrics`.
    """
    return clipped_token_loss(scores, normaliser, config.eps_low, config.eps_high, config.dual_clip)
