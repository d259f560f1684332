"""What a loss is: a pure function of token scores. Reads tensors, makes a scalar and metric sums; knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from mendwright.learning.forward import TokenScores


@dataclass(frozen=True)
class LossSettings:
    """Numbers a loss may use."""

    normaliser: float
    """Sum of token weights over the whole optimiser batch: micro-batches of any shape add up to one mean."""
    eps_low: float = 0.2
    eps_high: float = 0.3


@dataclass(frozen=True)
class LossOutput:
    """A share of the optimiser batch's loss."""

    loss: torch.Tensor
    """Scalar with gradient; shares of all micro-batches sum to the loss."""
    metric_sums: dict[str, torch.Tensor]
    """Name -> sum over the learned tokens; the trainer divides by their number."""


class Loss(Protocol):
    """A loss function."""

    def __call__(self, scores: TokenScores, settings: LossSettings) -> LossOutput:
        """The share of ``scores`` in the loss of the optimiser batch."""
        ...


def policy_metrics(scores: TokenScores) -> dict[str, torch.Tensor]:
    """Sums that every policy loss reports: entropy and the gap to the sampler's log-probabilities."""
    gap = (scores.log_prob.detach() - scores.old_log_prob).abs()
    return {"policy/entropy": scores.entropy.sum(), "policy/log_prob_gap": gap.sum()}
