"""Estimates of the distance to a reference policy (Schulman 2020, "Approximating KL divergence").

Reads log-probabilities of sampled tokens; makes one estimate per token. With d = log pi - log pi_reference: k1 = d is
unbiased, k2 = d^2 / 2 has the unbiased gradient, k3 = exp(-d) - 1 + d is unbiased and never negative (the term of GRPO,
arXiv 2402.03300, equation 4).
"""

from __future__ import annotations

from typing import Literal

import torch

from repairgym.config.algorithms import KlConfig
from repairgym.learning.losses.base import MAX_LOG_RATIO, Loss, LossOutput
from repairgym.learning.packing.forward import TokenScores


def kl_estimate(gap: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """[N] estimates from d = log pi - log pi_reference."""
    match estimator:
        case "k1":
            return gap
        case "k2":
            return 0.5 * gap.square()
        case "k3":
            return torch.exp((-gap).clamp(max=MAX_LOG_RATIO)) - 1.0 + gap


def with_kl(loss: Loss, config: KlConfig) -> Loss:
    """``loss`` plus coefficient / Z * sum of w * estimate: the same weights and normaliser as the loss itself.

    ``k1`` changes advantages before the loss (`learning/preparation.py`); here it is only reported.
    """

    def penalised(scores: TokenScores, normaliser: float, /) -> LossOutput:
        output = loss(scores, normaliser)
        if scores.reference_log_prob is None:
            raise ValueError("a KL term needs reference_log_prob of each token; give the trainer a reference model")
        estimate = kl_estimate(scores.log_prob - scores.reference_log_prob, config.type)
        sums = output.metric_sums | {f"policy/kl_{config.type}": estimate.detach().sum()}
        if config.type == "k1":
            return LossOutput(output.loss, sums)
        return LossOutput(output.loss + config.coefficient * (estimate * scores.weight).sum() / normaliser, sums)

    return penalised
