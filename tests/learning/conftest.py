"""A small sharp model and hand-made trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model
from repairgym.learning.learner import Learner
from repairgym.learning.samples import Sample
from repairgym.ledger import LedgerBuilder
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind

TINY = ModelConfig(
    vocab_size=120, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=64
)


def new_model(seed: int = 0) -> PreTrainedModel:
    model = create_model(TINY.model_copy(update={"seed": seed}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 4
    return model


@pytest.fixture
def make_model() -> Callable[[int], PreTrainedModel]:
    return new_model


@pytest.fixture
def model() -> PreTrainedModel:
    return new_model()


@pytest.fixture
def make_group() -> Callable[..., list[Sample]]:
    def make(seed: int, prompt_length: int, suffix_lengths: Sequence[int]) -> list[Sample]:
        """Samples with one prompt and random suffixes, about half of whose tokens are learned."""
        generator = np.random.default_rng(seed)
        prompt = generator.integers(0, 120, prompt_length)
        samples = []
        for length in suffix_lengths:
            ids = np.concatenate([prompt, generator.integers(0, 120, length)]).astype(np.int32)
            weight = np.zeros(len(ids), np.float32)
            weight[prompt_length:] = generator.random(length) < 0.5
            weight[prompt_length] = 1.0
            old = np.where(weight > 0, -4.0 - generator.random(len(ids)), 0.0).astype(np.float32)
            samples.append(Sample(ids, weight, old, float(generator.normal()), f"group{seed}"))
        return samples

    return make


@pytest.fixture
def trajectory() -> Trajectory:
    """Prompt [1 2 3], action [4 5] (a format error), observation [6 7], action [8 9]."""
    ledger = LedgerBuilder()
    ledger.append_context([1, 2, 3])
    first = ledger.append_action([4, 5], [-0.5, -1.0], 3)
    ledger.append_context([6, 7])
    second = ledger.append_action([8, 9], [-0.25, -0.0], 3)
    return Trajectory(
        id="t",
        task_id="task",
        group_id="g",
        pipeline="compact",
        policy_id="p",
        sandbox_backend="none",
        turns=(
            Turn(action="??", tool=None, observation="", error="format", action_span=first),
            Turn(action="submit", tool="submit", observation="", action_span=second),
        ),
        ledger=ledger.build(),
        stop_reason=StopReason.SUBMITTED,
        final_files={},
        final_patch="",
        verdict=Verdict(kind=VerdictKind.PASSED, reason="", grader_version="1"),
        seed=0,
    )


def _sampled(make_model: Callable[[int], PreTrainedModel], samples: list[Sample], gap: float = 0.2) -> list[Sample]:
    """``samples`` with log-probabilities that are off by a random ``gap``, turns of three tokens and rewards."""
    measured = Learner(make_model(0), OptimizerConfig(), ComputeConfig()).measure(samples)
    generator = np.random.default_rng(0)
    made = []
    for index, (sample, scores) in enumerate(zip(samples, measured, strict=True)):
        is_learned = sample.weight > 0
        noise = gap * generator.normal(size=len(sample)) * is_learned
        turn = np.where(is_learned, np.cumsum(is_learned) // 3, -1).astype(np.int32)
        old = (scores.log_prob + noise).astype(np.float32)
        made.append(replace(sample, old_log_prob=old, turn=turn, reward=float(index % 2)))
    return made


@pytest.fixture
def sampled() -> Callable[..., list[Sample]]:
    return _sampled


@pytest.fixture
def samples(make_model, make_group) -> list[Sample]:
    groups = [make_group(1, 30, (10, 40, 12)), make_group(2, 50, (20, 5)), make_group(3, 9, (7, 8, 30))]
    return _sampled(make_model, [sample for group in groups for sample in group])
