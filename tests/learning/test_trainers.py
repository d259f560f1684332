"""Optimisers, trainers and resuming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig, SftConfig
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.errors import InputError
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import create_model
from repairgym.learning.advantages import group_advantages
from repairgym.learning.checkpoints import load_training_state, save_training_state
from repairgym.learning.data.samples import Sample, text_sample
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.optimizers import Optimiser, schedule_factor
from repairgym.learning.rl import PolicyTrainer, minibatches
from repairgym.learning.sft import SftTrainer

MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
FAST = OptimizerConfig(learning_rate=1e-2)
TINY_SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
}
TEXTS = [text_sample([(start + step * 7) % 120 for step in range(20)]) for start in range(12)]


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


# --- optimisers ----------------------------------------------------------------------------------------------------


def test_schedules() -> None:
    cosine = OptimizerConfig(num_warmup_steps=10, schedule="cosine", final_lr_ratio=0.1)
    factors = [schedule_factor(cosine, step, 110) for step in (0, 4, 9, 10, 60, 110, 500)]
    assert factors == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    linear = OptimizerConfig(schedule="linear")
    assert [schedule_factor(linear, step, 4) for step in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert schedule_factor(OptimizerConfig(), 10**6, None) == 1.0


def test_a_decaying_schedule_needs_its_length(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="number of steps"):
        Optimiser(model, OptimizerConfig(schedule="cosine"))


def test_adamw_step_by_hand(model: PreTrainedModel) -> None:
    """First AdamW step: every weight moves by lr against the gradient's sign; matrices also decay."""
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.5, max_grad_norm=1e9)
    optimiser = Optimiser(model, config)
    before = weights(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimiser.step()
    matrix, vector = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    after = model.state_dict()
    assert torch.allclose(after[matrix], before[matrix] * (1 - 0.005) - 0.01, atol=1e-6)
    assert torch.allclose(after[vector], before[vector] - 0.01, atol=1e-6)


def test_clipping_bounds_the_gradient_and_reports_its_norm(model: PreTrainedModel) -> None:
    optimiser = Optimiser(model, OptimizerConfig(max_grad_norm=1.0))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert optimiser.step()["optim/grad_norm"] == pytest.approx(count**0.5, rel=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing(model: PreTrainedModel) -> None:
    optimiser = Optimiser(model, FAST)
    before = weights(model)
    next(model.parameters()).grad = torch.full_like(next(model.parameters()), float("nan"))
    assert optimiser.step()["optim/num_skipped"] == 1
    assert_equal(weights(model), before)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_supervised_training_learns_a_pattern(model: PreTrainedModel, kind: str) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(type=kind, learning_rate=1e-2, muon_learning_rate=0.02), batch_size=4, num_epochs=5
    )
    steps = list(SftTrainer.for_samples(model, config, len(TEXTS)).fit(TEXTS))
    assert len(steps) == 15
    assert steps[-1]["sft/nll"] < 0.6 * steps[0]["sft/nll"]


def test_muon_leaves_embeddings_and_vectors_to_adamw(model: PreTrainedModel) -> None:
    state = Optimiser(model, OptimizerConfig(type="muon")).state_dict()
    adamw, muon = state["parts"]
    num_hidden = sum(1 for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    assert len(muon["param_groups"][0]["params"]) == num_hidden
    assert sum(len(group["params"]) for group in adamw["param_groups"]) + num_hidden == len(list(model.parameters()))


# --- learner -------------------------------------------------------------------------------------------------------


def test_the_cut_into_micro_batches_does_not_change_the_step(make_model: MakeModel, make_group: MakeGroup) -> None:
    samples = make_group(1, 30, (10, 40, 12)) + make_group(2, 50, (20, 5)) + TEXTS[:3]
    results = []
    for budget in (4096, 60):
        learner = Learner(make_model(0), OptimizerConfig(max_grad_norm=1e9), ComputeConfig(micro_batch_tokens=budget))
        results.append(learner.step(samples, sft_loss))
    assert results[0]["train/loss"] == pytest.approx(results[1]["train/loss"], rel=1e-5)
    assert results[0]["optim/grad_norm"] == pytest.approx(results[1]["optim/grad_norm"], rel=1e-4)
    assert results[0]["train/num_learned_tokens"] == sum(sample.num_learned for sample in samples)


def test_gradient_checkpointing_gives_the_same_step(make_model: MakeModel, make_group: MakeGroup) -> None:
    samples = make_group(1, 30, (10, 40, 12))
    norms = []
    for is_checkpointing in (False, True):
        learner = Learner(make_model(0), OptimizerConfig(), ComputeConfig(is_checkpointing=is_checkpointing))
        norms.append(learner.step(samples, sft_loss)["optim/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_evaluation_measures_what_a_step_would_report_and_changes_nothing(model: PreTrainedModel) -> None:
    trainer = SftTrainer(model, SftConfig(optimizer=FAST))
    before = weights(model)
    measured = trainer.evaluate(TEXTS)
    assert_equal(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert measured["sft/nll"] == pytest.approx(trainer.step(TEXTS)["sft/nll"], rel=1e-5)


def test_dropout_is_off_while_learning(make_group: MakeGroup) -> None:
    config = GPT2Config(vocab_size=120, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    learner = Learner(GPT2LMHeadModel(config), OptimizerConfig(), ComputeConfig())
    group = make_group(1, 30, (10, 12))
    want = learner.evaluate(group, sft_loss)["sft/nll"]
    assert learner.step(group, sft_loss)["sft/nll"] == pytest.approx(want, rel=1e-5)


def test_a_batch_without_learned_tokens_changes_nothing(model: PreTrainedModel) -> None:
    empty = Sample(np.array([1, 2], np.int32), np.zeros(2, np.float32), np.zeros(2, np.float32))
    before = weights(model)
    assert SftTrainer(model, SftConfig()).step([empty]) == {}
    assert_equal(weights(model), before)


# --- policy update -------------------------------------------------------------------------------------------------


def rollouts(engine: Engine, iteration: int) -> list[Sample]:
    """Three groups of eight two-token answers; an even first token is worth 1."""
    requests = [
        engine.submit(
            f"{group}/{member}", [group + 1] * 12, max_tokens=2, stop_token_ids=(), seed=iteration * 100 + member
        )
        for group in range(3)
        for member in range(8)
    ]
    while engine.has_work:
        engine.step()
    samples = []
    for group in range(3):
        members = requests[group * 8 : group * 8 + 8]
        rewards = [float(request.token_ids[0] % 2 == 0) for request in members]
        for request, advantage in zip(members, group_advantages(rewards).values, strict=True):
            ids = np.array([*request.prompt.tolist(), *request.token_ids], np.int32)
            weight, old = np.zeros(14, np.float32), np.zeros(14, np.float32)
            weight[12:], old[12:] = 1.0, request.log_probs
            samples.append(Sample(ids, weight, old, advantage, f"{iteration}/{group}"))
    for request in requests:
        engine.end_session(request.session_id)
    return samples


def test_policy_updates_raise_the_reward_and_agree_with_the_sampler(make_model: MakeModel) -> None:
    model, served = make_model(0), make_model(0)
    engine = Engine(served, EngineConfig(num_slots=24, max_len_tokens=32))
    trainer = PolicyTrainer(model, AlgorithmConfig(optimizer=OptimizerConfig(learning_rate=1e-2), batch_size=16))
    rewards = []
    for iteration in range(15):
        samples = rollouts(engine, iteration)
        rewards.append(np.mean([sample.token_id[12] % 2 == 0 for sample in samples]))
        metrics = trainer.update(samples)
        if metrics:
            assert metrics["policy/log_prob_gap"] < 1e-4
        engine.load_state(model.state_dict(), iteration + 1)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2


def test_a_first_step_has_ratio_one_and_clips_nothing(model: PreTrainedModel, make_group: MakeGroup) -> None:
    group = make_group(1, 30, (10, 12, 9))
    trainer = PolicyTrainer(model, AlgorithmConfig(optimizer=FAST))
    far = trainer.update(group)
    assert far["policy/log_prob_gap"] > 0.1  # the made-up old log-probs are not the model's
    assert far["optim/num_steps"] == 1


def test_minibatches_keep_groups_whole_and_about_equal(make_group: MakeGroup) -> None:
    samples = [sample for seed in range(7) for sample in make_group(seed, 10, (3,) * 4)]
    batches = minibatches(samples, 10, np.random.default_rng(0))
    assert sorted(len(batch) for batch in batches) == [8, 8, 12]
    for batch in batches:
        names = [sample.group_id for sample in batch]
        assert all(names.count(name) == 4 for name in names)


def test_samples_without_advantage_are_left_out(model: PreTrainedModel, make_group: MakeGroup) -> None:
    group = [Sample(s.token_id, s.weight, s.old_log_prob, 0.0, "g") for s in make_group(1, 10, (3, 4))]
    before = weights(model)
    assert PolicyTrainer(model, AlgorithmConfig(optimizer=FAST)).update(group) == {}
    assert_equal(weights(model), before)


# --- resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(
    make_model: MakeModel, tmp_path: Path, kind: str
) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(type=kind, learning_rate=1e-2, num_warmup_steps=2, schedule="cosine"),
        batch_size=5,
        num_epochs=3,
    )
    unbroken = SftTrainer.for_samples(make_model(0), config, len(TEXTS))
    assert len(list(unbroken.fit(TEXTS))) == 9

    killed = SftTrainer.for_samples(make_model(0), config, len(TEXTS))
    for step, _ in enumerate(killed.fit(TEXTS)):
        if step == 4:
            save_training_state(killed.learner, None, tmp_path / "state", {"iteration": 4})
            drawn = torch.rand(3)
        if step == 6:
            break
    torch.manual_seed(99)
    resumed = SftTrainer.for_samples(make_model(1), config, len(TEXTS))
    assert load_training_state(resumed.learner, tmp_path / "state") == {"iteration": 4}
    assert torch.equal(torch.rand(3), drawn)
    assert len(list(resumed.fit(TEXTS))) == 4
    assert_equal(weights(resumed.learner.model), weights(unbroken.learner.model))


def test_states_that_cannot_be_used(make_model: MakeModel, tmp_path: Path) -> None:
    learner = Learner(make_model(0), FAST, ComputeConfig())
    with pytest.raises(InputError, match=r"training\.pt"):
        load_training_state(learner, tmp_path)
    save_training_state(learner, None, tmp_path / "s")
    before = weights(learner.model)
    wider = create_model(ModelConfig(**{**TINY_SIZES, "hidden_size": 48}))
    deeper = create_model(ModelConfig(**{**TINY_SIZES, "num_layers": 3}))
    for other, said in ((wider, "of shape"), (deeper, "missing")):
        with pytest.raises(InputError, match=f"another model.*{said}"):
            load_training_state(Learner(other, FAST, ComputeConfig()), tmp_path / "s")
    muon = Learner(make_model(0), OptimizerConfig(type="muon"), ComputeConfig())
    with pytest.raises(InputError, match="another optimiser"):
        load_training_state(muon, tmp_path / "s")
    (tmp_path / "s" / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="another model"):
        load_training_state(learner, tmp_path / "s")
    assert_equal(weights(learner.model), before)
