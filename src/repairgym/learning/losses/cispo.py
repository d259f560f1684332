"""CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5): the importance weight is clipped, not the gradient.

J = 1 / (sum of tokens) * sum over tokens of stop_gradient(clip(rho, min_ratio, max_ratio)) * A * log pi.
"""

from __future__ import annotations

from repairgym.config.algorithms import CispoLossConfig
from repairgym.learning.losses.base import LossOutput, log_ratio, policy_metrics
from repairgym.learning.packing.forward import TokenScores


def cispo_loss(scores: TokenScores, normaliser: float, config: CispoLossConfig) -> LossOutput:
    """REINFORCE with clipped importance weights.

    Returns:
        The loss share and the sums of ``policy/ratio_mean``, ``policy/clip_high_frac`` (weight bounded above),
        ``policy/clip_low_frac`` (below) and the policy metrics.
    """
    ratio = log_ratio(scores).exp().detach()
    importance = ratio.clamp(config.min_ratio, config.max_ratio)
    loss = -(importance * scores.advantage * scores.log_prob * scores.weight).sum() / normaliser
    sums = {
        "policy/ratio_mean": ratio.sum(),
        "policy/clip_high_frac": (ratio > config.max_ratio).float().sum(),
        "policy/clip_low_frac": (ratio < config.min_ratio).float().sum(),
    }
    return LossOutput(loss, sums | policy_metrics(scores))
