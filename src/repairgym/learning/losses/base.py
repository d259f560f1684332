"""What a loss is: a pure function of token scores. Reads tensors, makes a scalar and metric sums; knows no model.

Invariant of every loss: the shares of the micro-batches of an optimiser batch sum to the loss of the batch, because
each share is divided by the normaliser of the whole batch (`learning/denominators.py`) and each sequence is in one
share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from repairgym.learning.packing.forward import TokenScores

MAX_LOG_RATIO = 20.0
"""Beyond this exp() would overflow float32 gradients; the clipped side is flat there anyway for positive advantages."""


@dataclass(frozen=True)
class LossOutput:
    """A share of the optimiser batch's loss."""

    loss: torch.Tensor
    """Scalar with gradient; shares of all micro-batches sum to the loss."""
    metric_sums: dict[str, torch.Tensor]
    """Name -> sum over the learned tokens; the trainer divides by their number."""


class Loss(Protocol):
    """A loss with its settings bound."""

    def __call__(self, scores: TokenScores, normaliser: float, /) -> LossOutput:
        """The share of ``scores`` in the loss of the optimiser batch, ``normaliser`` its denominator."""
        ...


class PolicyLoss(Protocol):
    """A policy-gradient loss; ``config`` is the member of `config.algorithms.LossConfig` it is registered for."""

    def __call__(self, scores: TokenScores, normaliser: float, config: Any, /) -> LossOutput:
        """The share of ``scores`` in the loss of the optimiser batch, ``normaliser`` its denominator."""
        ...


def policy_metrics(scores: TokenScores) -> dict[str, torch.Tensor]:
    """Sums that every policy loss reports: entropy and the gap to the sampler's log-probabilities."""
    gap = (scores.log_prob.detach() - scores.old_log_prob).abs()
    return {"policy/entropy": scores.entropy.sum(), "policy/log_prob_gap": gap.sum()}


def log_ratio(scores: TokenScores) -> torch.Tensor:
    """[N] log(pi / pi_old) with gradient, bounded so that its exponential is finite."""
    return (scores.log_prob - scores.old_log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
