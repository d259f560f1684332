"""The DAPO loss of paper B (arXiv 2508.03501, equation 8): clip-higher, token-level, no KL term.

J = 1 / (sum of action tokens) * sum over tokens of min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A), with
rho = pi(token) / pi_old(token) (equation 6). The loss is -J.
"""

from __future__ import annotations

import torch

from mendwright.learning.forward import TokenScores
from mendwright.learning.losses.base import LossOutput, LossSettings, policy_metrics

_MAX_LOG_RATIO = 20.0
"""Beyond this exp() would overflow float32 gradients; the clipped side is flat there anyway for positive advantages."""


def dapo_loss(scores: TokenScores, settings: LossSettings) -> LossOutput:
    """Clipped policy-gradient loss.

    Args:
        scores: [N] tokens with ``log_prob`` (gradient), ``old_log_prob``, ``advantage`` and ``weight``.
        settings: ``normaliser`` is the number of action tokens of the whole optimiser batch.

    Returns:
        The loss share and the sums of ``dapo/ratio_mean``, ``dapo/clip_high_frac`` (ratio above the bound and advantage
        positive: no gradient), ``dapo/clip_low_frac`` (below, and negative) and the policy metrics.
    """
    log_ratio = (scores.log_prob - scores.old_log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - settings.eps_low, 1.0 + settings.eps_high)
    gain = torch.minimum(ratio * scores.advantage, clipped * scores.advantage)
    loss = -(gain * scores.weight).sum() / settings.normaliser
    is_high = (ratio > 1.0 + settings.eps_high) & (scores.advantage > 0)
    is_low = (ratio < 1.0 - settings.eps_low) & (scores.advantage < 0)
    sums = {
        "dapo/ratio_mean": ratio.detach().sum(),
        "dapo/clip_high_frac": is_high.float().sum(),
        "dapo/clip_low_frac": is_low.float().sum(),
    }
    return LossOutput(loss, sums | policy_metrics(scores))
