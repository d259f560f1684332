"""Preparation of samples before the first optimizer step: importance-sampling corrections, values, KL rewards.

Reads samples and the model before its update; makes samples. Guarantees: everything is computed with the weights before
the update and without gradient, and only for the options in use. A correction (for a sampler whose probabilities differ
from the learner's) is 1 everywhere for equal policies; it multiplies the weight of a token, never a denominator, so
that masked tokens make the loss smaller and not other tokens larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    KlConfig,
    MaskCorrectionConfig,
    NoCorrectionConfig,
    SelfDistillationAdvantageConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.learning import AlgorithmConfig
from repairgym.learning.advantages import token_advantages
from repairgym.learning.learner import Learner, Measured
from repairgym.learning.packing.forward import Scorer
from repairgym.learning.samples import Sample
from repairgym.learning.self_distillation import with_teacher

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Correction:
    """Importance-sampling factors of one sequence's learned tokens."""

    factor: np.ndarray
    """[N] float64."""
    ratio: np.ndarray
    """[N] pi_learner / pi_sampler before the bound: of the token, or of its sequence."""
    is_bounded: np.ndarray
    """[N] bool, truncated or masked."""


def correct(
    learner: np.ndarray, sampler: np.ndarray, config: TruncateCorrectionConfig | MaskCorrectionConfig
) -> Correction:
    """Compute importance-sampling factors from the [N] log-probabilities of one sequence under learner and sampler.

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


def prepare(
    samples: Sequence[Sample], learner: Learner, config: AlgorithmConfig, reference: Scorer | None
) -> tuple[list[Sample], dict[str, float]]:
    """Add to samples everything that the loss of ``config`` reads; return them in their order, and metrics of it."""
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
        prepared = [replace(s, advantage=np.float32(s.advantage) + _k1_reward(s, config)) for s in prepared]
    if isinstance(config.advantage, SelfDistillationAdvantageConfig):
        prepared, teacher_metrics = with_teacher(prepared, learner, config.advantage, reference)
        metrics |= teacher_metrics
    return [_unpraised(sample) for sample in prepared], metrics


def _unpraised(sample: Sample) -> Sample:
    """Cut the advantages of an exploit at 0: what was added to tokens here did not know of it."""
    if not sample.is_exploit:
        return sample
    return replace(sample, advantage=np.minimum(np.float32(sample.advantage), np.float32(0.0)))


def _corrected(
    samples: Sequence[Sample], measured: Sequence[Measured], config: AlgorithmConfig
) -> tuple[list[Sample], dict[str, float]]:
    """Replace ``old_log_prob`` by the learner's own and put the ratio to the sampler's into ``correction``."""
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
    raw = _raw_advantages(samples, measured, positions, gae, config)
    all_advantages = np.concatenate(raw)
    mean, deviation = (all_advantages.mean(), all_advantages.std() + 1e-8) if gae.is_normalized else (0.0, 1.0)
    valued, targets = [], []
    for sample, scores, at, advantages in zip(samples, measured, positions, raw, strict=True):
        assert scores.value is not None
        advantage, target = np.zeros(len(sample), np.float32), np.zeros(len(sample), np.float32)
        advantage[at], target[at] = (advantages - mean) / deviation, advantages + scores.value[at]
        targets.append(target[at])
        valued.append(replace(sample, advantage=advantage, old_value=scores.value, value_target=target))
    all_targets = np.concatenate(targets)
    explained = 1.0 - all_advantages.var() / all_targets.var() if all_targets.var() > 0 else 0.0
    return valued, {"value/explained_variance": float(explained), "value/target_mean": float(all_targets.mean())}


def _raw_advantages(
    samples: Sequence[Sample],
    measured: Sequence[Measured],
    positions: Sequence[np.ndarray],
    gae: GaeAdvantageConfig,
    config: AlgorithmConfig,
) -> list[np.ndarray]:
    """Of each sample: [learned] advantages, estimated along its whole trajectory.

    Where a history forked, the trajectory is several samples: its turns follow each other all the same, and its reward
    comes once, behind the last.
    """
    members: dict[str, list[int]] = {}
    for number, sample in enumerate(samples):
        members.setdefault(sample.trajectory_id or f"#{number}", []).append(number)
    raw = [np.zeros(0)] * len(samples)
    for numbers in members.values():
        parts = [(samples[number], measured[number].value, positions[number]) for number in numbers]
        turn = np.concatenate([np.zeros(len(at), np.int32) if s.turn is None else s.turn[at] for s, _, at in parts])
        value = np.concatenate([v[at].astype(np.float64) for _, v, at in parts if v is not None])
        reward = np.concatenate([_k1_reward(s, config)[at].astype(np.float64) for s, _, at in parts])
        order = np.argsort(turn, kind="stable")
        reward[order[-1]] += parts[0][0].reward
        advantages = np.empty(len(order))
        advantages[order] = token_advantages(value[order], reward[order], turn[order], gae)
        ends = np.cumsum([len(at) for _, _, at in parts])[:-1]
        for number, part in zip(numbers, np.split(advantages, ends), strict=True):
            raw[number] = part
    return raw


def _k1_reward(sample: Sample, config: AlgorithmConfig) -> np.ndarray:
    """[tokens] KL penalty in each learned token's reward; 0 without ``k1``."""
    if not isinstance(config.kl, KlConfig) or config.kl.type != "k1" or sample.reference_log_prob is None:
        return np.zeros(len(sample), np.float32)
    gap = np.where(sample.weight != 0.0, sample.old_log_prob - sample.reference_log_prob, 0.0)
    return np.asarray(-config.kl.coefficient * gap, dtype=np.float32)
