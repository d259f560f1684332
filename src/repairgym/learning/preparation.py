"""What an iteration's samples need before the first optimiser step: values, corrections, distances to a reference.

Reads samples and the model that is about to change; makes samples. Invariants: everything here is of the weights before
the update and without gradient; no forward pass is made that no option asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedModel

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    KlConfig,
    MaskCorrectionConfig,
    NoCorrectionConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.learning import AlgorithmConfig
from repairgym.learning.advantages import token_advantages
from repairgym.learning.learner import Learner, Measured
from repairgym.learning.samples import Sample


def prepare(
    samples: Sequence[Sample], learner: Learner, config: AlgorithmConfig, reference: PreTrainedModel | None
) -> tuple[list[Sample], dict[str, float]]:
    """Samples with all that the loss of ``config`` reads.

    Returns:
        The samples in their order, and ``correction/*``, ``value/*`` and ``policy/log_prob_gap`` where they were
        measured.
    """
    prepared = list(samples)
    metrics: dict[str, float] = {}
    if not prepared:
        return prepared, metrics
    is_corrected = not isinstance(config.correction, NoCorrectionConfig)
    measured = learner.measure(prepared) if is_corrected or learner.value_head else None
    if measured and is_corrected:
        prepared, metrics = _corrected(prepared, measured, config)
    if isinstance(config.kl, KlConfig) and reference is not None:
        scores = learner.measure(prepared, reference)
        prepared = [replace(s, reference_log_prob=m.log_prob) for s, m in zip(prepared, scores, strict=True)]
    if measured and isinstance(config.advantage, GaeAdvantageConfig):
        prepared, value_metrics = _with_values(prepared, measured, config.advantage, config)
        metrics |= value_metrics
    elif isinstance(config.kl, KlConfig) and config.kl.type == "k1":
        prepared = [replace(s, advantage=_float32(s.advantage + _k1_reward(s, config))) for s in prepared]
    return prepared, metrics


def _corrected(
    samples: Sequence[Sample], measured: Sequence[Measured], config: AlgorithmConfig
) -> tuple[list[Sample], dict[str, float]]:
    """``old_log_prob`` becomes the learner's own, the sampler's goes into ``correction``."""
    corrected, ratios, bounded, gaps = [], [], [], []
    for sample, scores in zip(samples, measured, strict=True):
        at = np.flatnonzero(sample.weight)
        assert not isinstance(config.correction, NoCorrectionConfig)
        result = correct(scores.log_prob[at], sample.old_log_prob[at], config.correction)
        factor = np.zeros(len(sample), dtype=np.float32)
        factor[at] = result.factor
        gaps.append(np.abs(scores.log_prob[at] - sample.old_log_prob[at]))
        ratios.append(result.ratio)
        bounded.append(result.is_bounded)
        corrected.append(replace(sample, old_log_prob=scores.log_prob, correction=factor))
    metrics = {
        "policy/log_prob_gap": float(np.concatenate(gaps).mean()),
        "correction/ratio_max": float(np.concatenate(ratios).max()),
        "correction/bounded_frac": float(np.concatenate(bounded).mean()),
    }
    return corrected, metrics


def _with_values(
    samples: Sequence[Sample], measured: Sequence[Measured], gae: GaeAdvantageConfig, config: AlgorithmConfig
) -> tuple[list[Sample], dict[str, float]]:
    positions = [np.flatnonzero(sample.weight) for sample in samples]
    raw = []
    for sample, scores, at in zip(samples, measured, positions, strict=True):
        assert scores.value is not None
        reward = _k1_reward(sample, config)[at].astype(np.float64)
        reward[-1] += sample.reward
        turn = np.zeros(len(at), np.int32) if sample.turn is None else sample.turn[at]
        raw.append(token_advantages(scores.value[at].astype(np.float64), reward, turn, gae))
    every = np.concatenate(raw)
    mean, deviation = (every.mean(), every.std() + 1e-8) if gae.is_normalised else (0.0, 1.0)
    valued, targets = [], []
    for sample, scores, at, advantages in zip(samples, measured, positions, raw, strict=True):
        assert scores.value is not None
        advantage, target = np.zeros(len(sample), np.float32), np.zeros(len(sample), np.float32)
        advantage[at], target[at] = (advantages - mean) / deviation, advantages + scores.value[at]
        targets.append(target[at])
        valued.append(replace(sample, advantage=advantage, old_value=scores.value, value_target=target))
    aims = np.concatenate(targets)
    explained = 1.0 - every.var() / aims.var() if aims.var() > 0 else 0.0
    return valued, {"value/explained_variance": float(explained), "value/target_mean": float(aims.mean())}


def _k1_reward(sample: Sample, config: AlgorithmConfig) -> np.ndarray:
    """[tokens] what the distance to the reference takes from each learned token's reward; 0 without ``k1``."""
    if not isinstance(config.kl, KlConfig) or config.kl.type != "k1" or sample.reference_log_prob is None:
        return np.zeros(len(sample), np.float32)
    gap = np.where(sample.weight != 0.0, sample.old_log_prob - sample.reference_log_prob, 0.0)
    return np.asarray(-config.kl.coefficient * gap, dtype=np.float32)


def _float32(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


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
