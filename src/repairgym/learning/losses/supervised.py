"""Losses of demonstrations and of preferences: SFT, and step-level DPO on pairs of actions.

Step-level DPO (Agent Q, arXiv 2408.07199): loss = 1/P sum over pairs of -log sigmoid(beta * (d_chosen - d_rejected)),
d = sum over the action's tokens of log pi - log pi_reference (DPO, arXiv 2305.18290, equation 7); the reference is the
policy before the update (Agent Q, Algorithm 1). The two actions of a pair may lie in different micro-batches, so the
loss takes two passes: first the margins (`preference_loss`), then tokens weighted with the derivative for their action
(`linear_loss`). The gradient is exact, and the sum over micro-batches stays a sum.
"""

import torch

from repairgym.learning.losses.base import LossOutput
from repairgym.learning.packing.forward import TokenScores


def sft_loss(scores: TokenScores, normalizer: float) -> LossOutput:
    """Compute token-weighted cross-entropy (paper A, SFT; paper B, section 4.2).

    Args:
        scores: [N] tokens with ``log_prob`` (gradient) and ``weight``.
        normalizer: Sum of weights over the whole optimizer batch.

    Returns:
        The loss share and the sums of ``sft/nll`` (unweighted) and ``policy/entropy``.
    """
    loss = -(scores.log_prob * scores.weight).sum() / normalizer
    return LossOutput(loss, {"sft/nll": -scores.log_prob.detach().sum(), "policy/entropy": scores.entropy.sum()})


def preference_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute loss and derivative of each pair.

    Args:
        chosen: [P] d of the better actions.
        rejected: [P] d of the worse actions.
        beta: Strength of the tie to the reference.

    Returns:
        [P] losses and [P] derivatives by ``chosen``; those by ``rejected`` are the negative.
    """
    margin = beta * (chosen - rejected)
    return -torch.nn.functional.logsigmoid(margin), -beta * torch.sigmoid(-margin)


def linear_loss(scores: TokenScores, normalizer: float) -> LossOutput:
    """Compute -(sum of weight * advantage * log pi) / normalizer, for a loss whose outer derivative is known.

    With minus the derivative of a pair's loss as advantage, the gradient is that of the pair's loss; the value means
    nothing.
    """
    loss = -(scores.advantage * scores.log_prob * scores.weight).sum() / normalizer
    return LossOutput(loss, {"policy/entropy": scores.entropy.sum()})
