"""Corrections for a sampler that computes other probabilities than the learner (design decision 6).

Reads log-probabilities of both for the same tokens; makes a factor per token. Invariants: equal policies give factor 1
everywhere; the factor carries no gradient and multiplies the weight of a token, never a denominator, so that what is
masked makes the loss smaller and not other tokens larger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repairgym.config.algorithms import MaskCorrectionConfig, TruncateCorrectionConfig

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Correction:
    """Factors of one sequence's learned tokens."""

    factor: np.ndarray
    """[N] float64."""
    ratio: np.ndarray
    """[N] pi_learner / pi_sampler that was bounded: the token's own, or its sequence's."""
    is_bounded: np.ndarray
    """[N] bool, truncated or masked."""


def correct(
    learner: np.ndarray, sampler: np.ndarray, config: TruncateCorrectionConfig | MaskCorrectionConfig
) -> Correction:
    """Factors from the [N] log-probabilities of one sequence under learner and sampler.

    Truncation: min(ratio, max_ratio). Masking: ratio within the bounds, else 0 (IcePop, arXiv 2510.18855).
    """
    gap = learner.astype(np.float64) - sampler
    if config.level == "sequence":
        gap = np.full(len(gap), gap.sum())
    ratio = np.exp(gap.clip(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    if isinstance(config, TruncateCorrectionConfig):
        return Correction(np.minimum(ratio, config.max_ratio), ratio, ratio > config.max_ratio)
    is_bounded = (ratio < config.min_ratio) | (ratio > config.max_ratio)
    return Correction(np.where(is_bounded, 0.0, ratio), ratio, is_bounded)
