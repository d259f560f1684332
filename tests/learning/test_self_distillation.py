"""Self-distillation: its gradient is that of the divergence, hints are never learned, and it solves the bandit."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.learning.test_known_problems import (
    BANDIT,
    NUM_ACTIONS,
    NUM_TOKENS,
    action_log_probs,
    make_trainer,
    new_model,
    sample_episodes,
    value_of,
)

from repairgym.config.algorithms import SelfDistillationAdvantageConfig
from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample
from repairgym.learning.self_distillation import with_teacher

CONFIG = SelfDistillationAdvantageConfig(max_gain=100.0)
OVERRIDES = ["advantage.type=self_distillation"]


def every_action(model, context: int, hint: tuple[int, ...]) -> list[Sample]:
    """One sample per token that the model can say in ``context``, with its log-probability."""
    log_probs = action_log_probs(model, BANDIT, [(context, ())])[0]
    prompt = BANDIT.token_ids(context, ())
    ids = [np.array([*prompt, token], np.int32) for token in range(NUM_TOKENS)]
    weight = np.array([0.0, 0.0, 1.0], np.float32)
    return [
        Sample(row, weight, weight * np.float32(value), 0.0, "g", hint=hint)
        for row, value in zip(ids, log_probs, strict=True)
    ]


def test_its_gradient_is_that_of_the_divergence_from_the_teacher() -> None:
    model, hint = new_model(3), (7, 2, 9)
    learner = Learner(model, OptimizerConfig(), ComputeConfig())
    samples, metrics = with_teacher(every_action(model, 1, hint), learner, CONFIG)
    gains = torch.tensor([float(sample.advantage[2]) for sample in samples])
    assert metrics["distillation/num_taught"] == NUM_TOKENS
    prompt = BANDIT.token_ids(1, ())

    def log_probs(ids: list[int]) -> torch.Tensor:
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)

    student, teacher = log_probs(prompt), log_probs([*hint, *prompt]).detach()
    divergence = (student.exp() * (student - teacher)).sum()
    assert -(student.exp() * gains).sum().item() == pytest.approx(divergence.item(), abs=1e-5)
    expected = torch.autograd.grad(divergence, list(model.parameters()), retain_graph=True, allow_unused=True)
    gain = -(student.exp().detach() * gains * student).sum()
    got = torch.autograd.grad(gain, list(model.parameters()), allow_unused=True)
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-5)
    assert any(b is not None and b.abs().max() > 1e-4 for b in expected)


def test_hints_are_never_learned_and_leave_everything_else_alone() -> None:
    model = new_model(0)
    learner = Learner(model, OptimizerConfig(), ComputeConfig())
    plain = every_action(model, 0, ())[0]
    hinted, too_long = replace(plain, hint=(3, 3)), replace(plain, hint=(3,) * 100_000)
    taught, metrics = with_teacher([plain, hinted, too_long], learner, SelfDistillationAdvantageConfig(max_gain=1e-3))
    assert taught[0] is plain
    assert taught[2] is too_long
    assert metrics["distillation/num_too_long"] == 1.0
    assert len(taught[1]) == len(plain)
    assert np.array_equal(taught[1].token_id, plain.token_id)
    assert np.array_equal(taught[1].weight, plain.weight)
    assert np.abs(taught[1].advantage).max() <= 1e-3 * (1 + 1e-6)
    assert not np.asarray(taught[1].advantage)[plain.weight == 0].any()


def listening_model(seed: int):
    """A model that repeats an action which stands before its prompt, and says anything where none does."""
    model, generator = new_model(seed), np.random.default_rng(seed)
    learner = Learner(model, OptimizerConfig(learning_rate=0.01, weight_decay=0.0), ComputeConfig())
    for _ in range(150):
        batch = []
        for _ in range(16):
            action, context = int(generator.integers(NUM_TOKENS)), int(generator.integers(BANDIT.num_contexts))
            is_told = generator.random() < 0.7
            said = action if is_told else int(generator.integers(NUM_TOKENS))
            ids = np.array([*([action] * 2 if is_told else []), *BANDIT.token_ids(context, ()), said], np.int32)
            weight = np.zeros(len(ids), np.float32)
            weight[-1] = 1.0
            batch.append(Sample(ids, weight, np.zeros(len(ids), np.float32)))
        learner.step(batch, sft_loss)
    return model


@pytest.mark.slow
def test_the_policy_with_feedback_teaches_the_policy_without_a_reward() -> None:
    model = listening_model(0)
    start = value_of(model, BANDIT)
    config = load_config(
        AlgorithmConfig,
        None,
        ["optimizer.learning_rate=0.01", "optimizer.weight_decay=0.0", "batch_size=32", "seed=0", *OVERRIDES],
    )
    trainer = PolicyTrainer(model, config, reference=copy.deepcopy(model))
    generator = np.random.default_rng(0)
    for _ in range(BANDIT.num_updates):
        samples, _ = sample_episodes(model, BANDIT, 4, generator)
        hinted = []
        for sample in samples:
            context = (int(sample.token_id[1]) - 4) % BANDIT.num_contexts
            right = (NUM_ACTIONS - 1 - context) % NUM_ACTIONS
            hinted.append(replace(sample, hint=(right, right)))
        trainer.update(hinted)
    assert start < 0.5
    assert value_of(model, BANDIT) > 0.95 * BANDIT.optimum()


def test_without_hints_and_weight_nothing_is_learned() -> None:
    model, trainer = make_trainer(OVERRIDES, 0)
    samples, _ = sample_episodes(model, BANDIT, 1, np.random.default_rng(0))
    assert trainer.update(samples) == {}


@pytest.mark.parametrize("extra", ["is_error_masked=true", "negative_weight=0.5", "loss.type=gspo"])
def test_settings_that_cannot_hold_are_errors(extra: str) -> None:
    with pytest.raises(ConfigError, match="self_distillation"):
        load_config(AlgorithmConfig, None, [*OVERRIDES, extra])
