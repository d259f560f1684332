"""PPO with a value head (arXiv 1707.06347, equations 7 and 9): clipped gain of the policy, clipped error of the value.

loss = -1/Z sum of w * min(rho * A, clip(rho) * A) + value_coefficient / Z * sum of w * 1/2 max((V - T)^2, (V_c - T)^2),
where T is the target, V_c = V_old + clip(V - V_old, -value_clip, value_clip) (arXiv 2005.12729, section 2). Policy and
value share weights and denominator. Advantages and targets come from `advantages/gae.py`.
"""

from __future__ import annotations

import torch

from repairgym.config.algorithms import PpoLossConfig
from repairgym.learning.losses.base import LossOutput
from repairgym.learning.losses.clipping import clipped_token_loss
from repairgym.learning.packing.forward import TokenScores


def ppo_loss(scores: TokenScores, normaliser: float, config: PpoLossConfig) -> LossOutput:
    """Clipped policy-gradient loss plus clipped value loss.

    Returns:
        The loss share and the metrics of `clipping.clip_metrics` with the sums of ``value/squared_error`` (before
        clipping) and ``value/clip_frac``.

    Raises:
        ValueError: the scores come without a value head, or without the values before the update and their targets.
    """
    policy = clipped_token_loss(scores, normaliser, config.eps_low, config.eps_high, config.dual_clip)
    if scores.value is None or scores.old_value is None or scores.value_target is None:
        raise ValueError(
            "the loss 'ppo' needs value, old_value and value_target of each token; train with a value head"
        )
    error, is_clipped = clipped_value_error(scores.value, scores.old_value, scores.value_target, config.value_clip)
    value_loss = 0.5 * (error * scores.weight).sum() / normaliser
    sums = {
        "value/squared_error": (scores.value.detach() - scores.value_target).square().sum(),
        "value/clip_frac": is_clipped.float().sum(),
    }
    return LossOutput(policy.loss + config.value_coefficient * value_loss, policy.metric_sums | sums)


def clipped_value_error(
    value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, value_clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[N] max((V - T)^2, (V_c - T)^2) with gradient, and where the clipped one is larger (no gradient there)."""
    clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
    error, clipped_error = (value - target).square(), (clipped - target).square()
    return torch.maximum(error, clipped_error), clipped_error > error
