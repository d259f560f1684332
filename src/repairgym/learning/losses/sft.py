"""Supervised loss: token-weighted cross-entropy on the learned tokens (paper A, SFT; paper B, section 4.2)."""

from __future__ import annotations

from repairgym.learning.losses.base import LossOutput
from repairgym.learning.packing.forward import TokenScores


def sft_loss(scores: TokenScores, normaliser: float) -> LossOutput:
    """Weighted negative log-likelihood.

    Args:
        scores: [N] tokens with ``log_prob`` (gradient) and ``weight``.
        normaliser: Sum of weights over the whole optimiser batch.

    Returns:
        The loss share and the sums of ``sft/nll`` (unweighted) and ``policy/entropy``.
    """
    loss = -(scores.log_prob * scores.weight).sum() / normaliser
    return LossOutput(loss, {"sft/nll": -scores.log_prob.detach().sum(), "policy/entropy": scores.entropy.sum()})
