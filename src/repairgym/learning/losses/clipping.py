"""PPO's clipped gain (arXiv 1707.06347, equation 7), which DAPO, GRPO, Dr. GRPO, GSPO and PPO share.

Reads ratios and advantages; makes gains. They differ in the bounds, in whose ratio it is and in the denominator.
"""

from __future__ import annotations

import torch

from repairgym.learning.losses.base import LossOutput, log_ratio, policy_metrics
from repairgym.learning.packing.forward import TokenScores


def clipped_gain(
    ratio: torch.Tensor, advantage: torch.Tensor, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> torch.Tensor:
    """min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A), and at least dual_clip * A where A < 0.

    Args:
        ratio: [N] pi / pi_old with gradient.
        advantage: [N].
        eps_low: Lower bound is 1 - eps_low.
        eps_high: Upper bound is 1 + eps_high.
        dual_clip: Arxiv 1912.09729, equation 5; None: a ratio that is far too large counts in full where A < 0.

    Returns:
        [N] to be maximised.
    """
    gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - eps_low, 1.0 + eps_high) * advantage)
    if dual_clip is None:
        return gain
    return torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)


def clipped_token_loss(
    scores: TokenScores, normaliser: float, eps_low: float, eps_high: float, dual_clip: float | None
) -> LossOutput:
    """-(sum of weight * clipped gain of each token) / normaliser, with the metrics of `clip_metrics`."""
    ratio = log_ratio(scores).exp()
    gain = clipped_gain(ratio, scores.advantage, eps_low, eps_high, dual_clip)
    loss = -(gain * scores.weight).sum() / normaliser
    return LossOutput(loss, clip_metrics(ratio, scores, eps_low, eps_high))


def clip_metrics(ratio: torch.Tensor, scores: TokenScores, eps_low: float, eps_high: float) -> dict[str, torch.Tensor]:
    """Sums of ``policy/ratio_mean``, ``policy/clip_high_frac``, ``policy/clip_low_frac`` and the policy metrics.

    High: the ratio is above its bound and the advantage positive, so there is no gradient; low: below and negative.
    """
    is_high = (ratio > 1.0 + eps_high) & (scores.advantage > 0)
    is_low = (ratio < 1.0 - eps_low) & (scores.advantage < 0)
    sums = {
        "policy/ratio_mean": ratio.detach().sum(),
        "policy/clip_high_frac": is_high.float().sum(),
        "policy/clip_low_frac": is_low.float().sum(),
    }
    return sums | policy_metrics(scores)
