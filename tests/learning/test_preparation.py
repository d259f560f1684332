"""Truncated and masked importance sampling by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    MaskCorrectionConfig,
    PpoLossConfig,
    SelfDistillationAdvantageConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.learning.learner import Learner
from repairgym.learning.preparation import correct, prepare
from repairgym.learning.samples import Sample

SAMPLER = np.array([-2.0, -2.0, -2.0], np.float32)
LEARNER = SAMPLER + np.log(np.array([1.0, 4.0, 0.25], np.float32))


def test_truncation_bounds_the_ratio_from_above() -> None:
    got = correct(LEARNER, SAMPLER, TruncateCorrectionConfig(max_ratio=2.0))
    assert got.factor == pytest.approx([1.0, 2.0, 0.25], rel=1e-6)
    assert got.is_bounded.tolist() == [False, True, False]


def test_masking_leaves_out_ratios_outside_the_bounds() -> None:
    got = correct(LEARNER, SAMPLER, MaskCorrectionConfig(min_ratio=0.5, max_ratio=5.0))
    assert got.factor == pytest.approx([1.0, 4.0, 0.0], rel=1e-6)
    assert got.is_bounded.tolist() == [False, False, True]


def test_the_ratio_of_a_sequence_is_the_product_of_its_tokens() -> None:
    got = correct(LEARNER[:2], SAMPLER[:2], TruncateCorrectionConfig(level="sequence", max_ratio=3.0))
    assert got.ratio == pytest.approx([4.0, 4.0], rel=1e-6)
    assert got.factor.tolist() == [3.0, 3.0]
    assert correct(LEARNER, SAMPLER, MaskCorrectionConfig(level="sequence")).factor == pytest.approx(
        [1.0] * 3, rel=1e-6
    )


@pytest.mark.parametrize("config", [TruncateCorrectionConfig(), MaskCorrectionConfig(level="sequence")])
def test_equal_policies_are_not_corrected(config: TruncateCorrectionConfig | MaskCorrectionConfig) -> None:
    got = correct(SAMPLER, SAMPLER, config)
    assert got.factor.tolist() == [1.0, 1.0, 1.0]
    assert not got.is_bounded.any()


def test_a_long_sequence_that_has_moved_far_stays_finite() -> None:
    far = correct(np.full(5000, -1.0), np.full(5000, -2.0), TruncateCorrectionConfig(level="sequence"))
    assert far.factor.tolist() == [2.0] * 5000
    assert math.isfinite(far.ratio.max())


def history(prompt: list[int], actions: dict[int, list[int]], **settings: object) -> Sample:
    """One history: behind the prompt the actions of some turns, each behind an observation."""
    ids, turn = list(prompt), [-1] * len(prompt)
    for number, action in actions.items():
        ids += [7, *action]
        turn += [-1] + [number] * len(action)
    turns = np.array(turn, np.int32)
    weight = (turns >= 0).astype(np.float32)
    return Sample(np.array(ids, np.int32), weight, -2.0 * weight, turn=turns, **settings)  # type: ignore[arg-type]


ACTIONS = {0: [11, 12], 1: [13], 2: [14, 15, 16]}


@pytest.mark.parametrize("is_forked", [False, True])
def test_turns_are_discounted_along_the_trajectory_whatever_happened_to_its_history(
    model: PreTrainedModel, is_forked: bool
) -> None:
    """A new value head says 0, so each token's target is the reward, halved from turn to turn."""
    parts = [{turn: action} for turn, action in ACTIONS.items()] if is_forked else [ACTIONS]
    # A sample's place in the batch is not its place in the trajectory.
    samples = [history([1, 2, 3], part, trajectory_id="t", reward=1.0) for part in parts][::-1]
    other = history([1, 2, 4], {0: [17]}, trajectory_id="other", reward=-1.0)
    learner = Learner(model, OptimizerConfig(), ComputeConfig(), value_learning_rate=1e-3)
    gae = GaeAdvantageConfig(is_normalized=False, turn_discount=0.5)
    *prepared, last = prepare([*samples, other], learner, AlgorithmConfig(advantage=gae, loss=PpoLossConfig()), None)[0]
    found = {}
    for sample in prepared:
        assert sample.turn is not None
        assert sample.value_target is not None
        for at in np.flatnonzero(sample.weight):
            found.setdefault(int(sample.turn[at]), []).append(float(sample.value_target[at]))
    assert found == {0: [0.25] * 2, 1: [0.5], 2: [1.0] * 3}
    assert last.value_target is not None
    assert last.value_target[last.weight > 0].tolist() == [-1.0]


def test_the_explained_variance_is_that_of_the_targets(model: PreTrainedModel) -> None:
    """1 - var(T - V) / var(T) over all learned tokens, with values that differ from token to token."""
    learner = Learner(model, OptimizerConfig(), ComputeConfig(), value_learning_rate=1e-3)
    assert learner.value_head
    torch.manual_seed(0)
    torch.nn.init.normal_(learner.value_head.linear.weight)
    samples = [
        history([1, 2, 3], ACTIONS, trajectory_id="a", reward=1.0),
        history([1, 5, 3], ACTIONS, trajectory_id="b", reward=0.0),
    ]
    config = AlgorithmConfig(advantage=GaeAdvantageConfig(turn_lambda=0.5), loss=PpoLossConfig())
    prepared, metrics = prepare(samples, learner, config, None)
    values, targets = [], []
    for sample in prepared:
        assert sample.old_value is not None
        assert sample.value_target is not None
        values.append(sample.old_value[sample.weight > 0])
        targets.append(sample.value_target[sample.weight > 0])
    value, target = np.concatenate(values), np.concatenate(targets)
    expected = 1.0 - (target - value).var() / target.var()
    assert metrics["value/explained_variance"] == pytest.approx(expected, rel=1e-3)
    assert metrics["value/target_mean"] == pytest.approx(target.mean(), rel=1e-3)
    assert expected != 0.0


def test_no_token_of_an_exploit_is_praised_by_critic_or_teacher(model: PreTrainedModel) -> None:
    learner = Learner(model, OptimizerConfig(), ComputeConfig(), value_learning_rate=1e-3)
    for config in (
        AlgorithmConfig(advantage=GaeAdvantageConfig(), loss=PpoLossConfig()),
        AlgorithmConfig(advantage=SelfDistillationAdvantageConfig()),
    ):
        samples = [
            history([1, 2, 3], ACTIONS, trajectory_id="a", reward=1.0, is_exploit=is_exploit, hint=(40, 41, 42))
            for is_exploit in (False, True)
        ]
        # Improbable for the sampler, so that the teacher would praise some of them.
        samples = [
            dataclasses.replace(s, trajectory_id=f"{s.is_exploit}", old_log_prob=-3.7 * s.weight) for s in samples
        ]
        worse = history([1, 2, 3], {0: [21]}, trajectory_id="c", reward=0.0)
        honest, caught, _ = prepare([*samples, worse], learner, config, None)[0]
        before, after = (np.asarray(sample.advantage)[sample.weight > 0] for sample in (honest, caught))
        assert before.max() > 0
        assert after.tolist() == np.minimum(before, 0.0).tolist()
