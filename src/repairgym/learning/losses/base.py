"""Types of a loss: a pure function of token scores that returns a scalar and metric sums.

Guarantees of every loss: it knows no model, and the shares of the micro-batches of an optimizer batch sum to the loss
of the batch, because each share is divided by the normalizer of the whole batch (`learning/denominators.py`) and each
sequence is in one share.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from repairgym.learning.packing.forward import TokenScores


@dataclass(frozen=True)
class LossOutput:
    """A share of the optimizer batch's loss."""

    loss: torch.Tensor
    """Scalar with gradient; shares of all micro-batches sum to the loss."""
    metric_sums: dict[str, torch.Tensor]
    """Name -> sum over the learned tokens; the trainer divides by their number."""


class Loss(Protocol):
    """A loss with its settings bound."""

    def __call__(self, scores: TokenScores, normalizer: float, /) -> LossOutput:
        """Return the share of ``scores`` in the loss of the optimizer batch; ``normalizer`` is its denominator."""
        ...


class PolicyLoss(Protocol):
    """A policy-gradient loss; ``config`` is the member of `config.algorithms.LossConfig` it is registered for."""

    def __call__(self, scores: TokenScores, normalizer: float, config: Any, /) -> LossOutput:
        """Return the share of ``scores`` in the loss of the optimizer batch; ``normalizer`` is its denominator."""
        ...
