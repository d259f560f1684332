"""Step-level DPO (Agent Q, arXiv 2408.07199): which of two actions after one history was better.

loss = 1/P sum over pairs of -log sigmoid(beta * (d_chosen - d_rejected)), d = sum over the action's tokens of
log pi - log pi_reference (DPO, arXiv 2305.18290, equation 7); the reference is the policy before the update (Agent Q,
Algorithm 1). The two actions of a pair may lie in different micro-batches, so the loss is computed in two passes: the
margins first, then tokens weighted with the derivative for their action. The gradient is exact and the sum over
micro-batches stays a sum.
"""

from __future__ import annotations

import torch

from repairgym.learning.losses.base import LossOutput
from repairgym.learning.packing.forward import TokenScores


def preference_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and derivative of each pair.

    Args:
        chosen: [P] d of the better actions.
        rejected: [P] d of the worse ones.
        beta: How far the policy may leave the reference.

    Returns:
        [P] losses and [P] their derivatives by ``chosen``; those by ``rejected`` are the negative.
    """
    margin = beta * (chosen - rejected)
    return -torch.nn.functional.logsigmoid(margin), -beta * torch.sigmoid(-margin)


def linear_loss(scores: TokenScores, normaliser: float) -> LossOutput:
    """-(sum of weight * advantage * log pi) / normaliser: the derivative of a loss whose outer part is known.

    With minus the derivative of a pair's loss as advantage its gradient is that of the pair's loss; its value means
    nothing.
    """
    loss = -(scores.advantage * scores.log_prob * scores.weight).sum() / normaliser
    return LossOutput(loss, {"policy/entropy": scores.entropy.sum()})
