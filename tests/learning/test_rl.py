"""The policy update, end to end through a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.errors import ConfigError
from repairgym.inference.engine.core import Engine
from repairgym.learning.advantages import group_advantages
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.rl import PolicyTrainer, minibatches
from repairgym.learning.samples import Sample

MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
FAST = OptimizerConfig(learning_rate=1e-2)


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


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
    measured = trainer.learner.measure(group)
    own = [replace(sample, old_log_prob=scores.log_prob) for sample, scores in zip(group, measured, strict=True)]
    first = trainer.update(own)
    assert first["optim/num_steps"] == 1
    assert first["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert first["policy/clip_high_frac"] == first["policy/clip_low_frac"] == 0.0
    assert first["policy/log_prob_gap"] < 1e-4
    # Made-up log-probabilities are not the model's.
    far = PolicyTrainer(model, AlgorithmConfig(optimizer=FAST)).update(group)
    assert far["policy/log_prob_gap"] > 0.1
    assert far["policy/clip_high_frac"] + far["policy/clip_low_frac"] > 0.0


def test_minibatches_keep_groups_whole_and_about_equal(make_group: MakeGroup) -> None:
    samples = [sample for seed in range(7) for sample in make_group(seed, 10, (3,) * 4)]
    batches = minibatches(samples, 10, np.random.default_rng(0))  # without ids each sample is a trajectory
    assert sorted(len(batch) for batch in batches) == [8, 8, 12]
    for batch in batches:
        names = [sample.group_id for sample in batch]
        assert all(names.count(name) == 4 for name in names)


def test_a_trajectory_whose_history_forked_counts_once_in_a_minibatch(make_group: MakeGroup) -> None:
    """Batches of 2 of 3 groups x 2 trajectories: the same, whether each is one history or five."""
    whole = [
        replace(sample, trajectory_id=f"{seed}/{number}")
        for seed in range(3)
        for number, sample in enumerate(make_group(seed, 10, (3, 3)))
    ]
    forked = [sample for sample in whole for _ in range(5 if sample.group_id != "group1" else 1)]
    batches = [minibatches(samples, 4, np.random.default_rng(0)) for samples in (whole, forked)]
    names = [[{sample.trajectory_id for sample in batch} for batch in part] for part in batches]
    assert names[0] == names[1]
    assert sorted(map(len, names[0])) == [2, 4]


def test_samples_without_advantage_are_left_out(model: PreTrainedModel, make_group: MakeGroup) -> None:
    group = [Sample(s.token_id, s.weight, s.old_log_prob, 0.0, "g") for s in make_group(1, 10, (3, 4))]
    before = weights(model)
    assert PolicyTrainer(model, AlgorithmConfig(optimizer=FAST)).update(group) == {}
    assert_equal(weights(model), before)


MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
PPO = ["loss.type=ppo", "advantage.type=gae"]
EVERY_LOSS = {
    "dapo": [],
    "grpo": ["loss.type=grpo"],
    "turns": ["loss.type=grpo", "loss.denominator=turn"],
    "groups": ["loss.denominator=group"],
    "dr_grpo": ["loss.type=dr_grpo", "advantage.type=dr_grpo"],
    "gspo": ["loss.type=gspo", "loss.eps_low=0.5", "loss.eps_high=0.5"],
    "cispo": ["loss.type=cispo"],
    "ppo": PPO,
    "budget": ["token_budget=25"],
    "masked": ["correction.type=mask", "correction.level=token"],
    "kl": ["kl.type=k3", "kl.coefficient=0.1"],
    "k1": ["kl.type=k1", "kl.coefficient=0.1"],
}


def config_of(*overrides: str) -> AlgorithmConfig:
    return load_config(
        AlgorithmConfig, None, ["optimizer.learning_rate=0.01", "optimizer.max_grad_norm=1e9", *overrides]
    )


def trainer_of(make_model: MakeModel, *overrides: str) -> PolicyTrainer:
    return PolicyTrainer(make_model(0), config_of(*overrides), reference=make_model(1))


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_packing_micro_batches_and_samples_without_learned_tokens_change_no_step(
    make_model: MakeModel, samples: list[Sample], name: str
) -> None:
    """Shared prefixes in one micro-batch; every sample on its own with nothing shared; one more that learns nothing."""
    want = trainer_of(make_model, *EVERY_LOSS[name]).update(samples)
    # Without group ids the groups would fall apart, which only the denominator "group" and the budget's order see.
    alone = [sample if name in ("groups", "budget") else replace(sample, group_id="") for sample in samples]
    cut = trainer_of(make_model, "compute.micro_batch_tokens=60", *EVERY_LOSS[name]).update(alone)
    assert cut["train/loss"] == pytest.approx(want["train/loss"], rel=1e-4, abs=1e-6)
    assert cut["optim/grad_norm"] == pytest.approx(want["optim/grad_norm"], rel=1e-3)
    silent = replace(samples[0], weight=np.zeros(len(samples[0]), np.float32), group_id="group1")
    got = trainer_of(make_model, *EVERY_LOSS[name]).update([*samples, silent])
    assert got["train/loss"] == pytest.approx(want["train/loss"], rel=1e-5)
    assert got["optim/grad_norm"] == pytest.approx(want["optim/grad_norm"], rel=1e-5)


def test_a_correction_takes_the_learners_own_log_probs_and_reports_the_gap(
    make_model: MakeModel, samples: list[Sample]
) -> None:
    metrics = trainer_of(make_model, "correction.type=truncate", "correction.max_ratio=1.1").update(samples)
    assert metrics["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert 0.1 < metrics["policy/log_prob_gap"] < 0.25
    assert metrics["correction/ratio_max"] > 1.2
    assert 0.1 < metrics["correction/bounded_frac"] < 0.6
    plain = trainer_of(make_model).update(samples)
    assert plain["policy/ratio_mean"] != pytest.approx(1.0, abs=1e-3)
    assert plain["optim/grad_norm"] != pytest.approx(metrics["optim/grad_norm"], rel=1e-3)


def test_a_sampler_that_agrees_is_not_corrected(
    make_model: MakeModel, samples: list[Sample], sampled: Callable[..., list[Sample]]
) -> None:
    agreeing = sampled(make_model, samples, gap=0.0)
    got = trainer_of(make_model, "correction.type=truncate").update(agreeing)
    assert got["correction/bounded_frac"] == 0.0
    assert got["optim/grad_norm"] == pytest.approx(trainer_of(make_model).update(agreeing)["optim/grad_norm"], rel=1e-4)


def test_the_factor_multiplies_every_token(
    make_model: MakeModel, samples: list[Sample], sampled: Callable[..., list[Sample]]
) -> None:
    """A sampler that found each token twice as likely: half the gradient, over the same denominator."""
    agreeing = sampled(make_model, samples, gap=0.0)
    eager = [
        replace(sample, old_log_prob=sample.old_log_prob + np.float32(np.log(2)) * (sample.weight > 0))
        for sample in agreeing
    ]
    want = trainer_of(make_model).update(agreeing)
    got = trainer_of(make_model, "correction.type=truncate").update(eager)
    assert got["optim/grad_norm"] == pytest.approx(0.5 * want["optim/grad_norm"], rel=1e-3)


def test_a_reference_is_needed_and_stays_as_it_is(make_model: MakeModel, samples: list[Sample]) -> None:
    with pytest.raises(ConfigError, match="reference model"):
        PolicyTrainer(make_model(0), config_of("kl.type=k3"))
    reference = make_model(1)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    metrics = PolicyTrainer(make_model(0), config_of("kl.type=k3"), reference=reference).update(samples)
    assert metrics["policy/kl_k3"] > 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.state_dict().items())


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_a_kl_term_pulls_towards_the_reference(
    make_model: MakeModel, samples: list[Sample], kind: str, sampled: Callable[..., list[Sample]]
) -> None:
    """Without advantages only the term is left, and ten steps of it bring the policy nearer on these samples."""
    aimless = [replace(sample, advantage=0.0) for sample in sampled(make_model, samples, gap=0.0)]
    config = config_of(f"kl.type={kind}", "kl.coefficient=1.0", "optimizer.learning_rate=0.001")
    trainer = PolicyTrainer(make_model(0), config, reference=make_model(1))
    reference = trainer.learner.measure(aimless, trainer.learner.scorer_of(make_model(1)))
    gaps = []
    for _ in range(10):
        measured = trainer.learner.measure(aimless)
        aimless = [replace(s, old_log_prob=m.log_prob) for s, m in zip(aimless, measured, strict=True)]
        gaps.append(np.mean([np.abs(a.log_prob - b.log_prob).sum() for a, b in zip(measured, reference, strict=True)]))
        trainer.update(aimless)
    assert gaps[-1] < 0.9 * gaps[0]


def test_demonstrations_are_a_second_term_with_its_coefficient(make_model: MakeModel, samples: list[Sample]) -> None:
    shown = [replace(sample, group_id="") for sample in samples[:2]]
    plain = trainer_of(make_model).update(samples)
    metrics = trainer_of(make_model).update(samples, shown, 0.5)
    nll = Learner(make_model(0), OptimizerConfig(), ComputeConfig()).evaluate(shown, sft_loss)["train/loss"]
    assert metrics["train/loss"] == pytest.approx(plain["train/loss"] + 0.5 * nll, rel=1e-4)
    assert metrics["demonstration/sft/nll"] == pytest.approx(nll, rel=1e-4)
    assert metrics["policy/ratio_mean"] == pytest.approx(plain["policy/ratio_mean"], rel=1e-4)
    assert trainer_of(make_model).update(samples, shown, 0.0)["train/loss"] == pytest.approx(plain["train/loss"])


def test_demonstrations_are_learned_where_every_group_failed(make_model: MakeModel, samples: list[Sample]) -> None:
    shown = [replace(sample, group_id="") for sample in samples[:2]]
    trainer = trainer_of(make_model)
    metrics = trainer.update([replace(sample, advantage=0.0) for sample in samples], shown, 0.5)
    assert metrics["optim/num_steps"] == 1.0
    assert metrics["train/num_learned_tokens"] == sum(sample.num_learned for sample in shown)


def test_the_token_budget_bounds_what_a_step_learns_from(make_model: MakeModel, samples: list[Sample]) -> None:
    assert sum(sample.num_learned for sample in samples) > 25
    assert trainer_of(make_model, "token_budget=25").update(samples)["train/num_learned_tokens"] == 25


def test_a_new_value_head_says_zero_so_targets_are_the_rewards(make_model: MakeModel, samples: list[Sample]) -> None:
    metrics = trainer_of(make_model, *PPO).update(samples)
    num_tokens = sum(sample.num_learned for sample in samples)
    mean = sum(sample.reward * sample.num_learned for sample in samples) / num_tokens
    assert metrics["value/target_mean"] == pytest.approx(mean, abs=1e-5)
    assert metrics["value/squared_error"] == pytest.approx(mean, abs=1e-5)


def test_undiscounted_targets_are_the_rewards_whatever_the_head_says(
    make_model: MakeModel, samples: list[Sample]
) -> None:
    want = trainer_of(make_model, *PPO).update(samples)["value/target_mean"]
    trainer = trainer_of(make_model, *PPO)
    assert trainer.learner.value_head is not None
    torch.nn.init.constant_(trainer.learner.value_head.linear.bias, 0.7)
    assert trainer.update(samples)["value/target_mean"] == pytest.approx(want, abs=1e-5)


def test_the_value_head_learns_the_returns(make_model: MakeModel, samples: list[Sample]) -> None:
    trainer = trainer_of(make_model, *PPO, "loss.value_learning_rate=0.03", "loss.value_clip=10.0")
    errors = [trainer.update(samples)["value/squared_error"] for _ in range(15)]
    assert errors[-1] < 0.5 * errors[0]
