"""What the options of the policy update change in a step, end to end through a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig, StepDpoConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, InputError
from repairgym.learning.checkpoints import load_training_state, save_training_state
from repairgym.learning.data.samples import Sample
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.preferences import Pair, PreferenceTrainer
from repairgym.learning.rl import PolicyTrainer

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


def sampled(make_model: MakeModel, samples: list[Sample], gap: float = 0.2) -> list[Sample]:
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
def samples(make_model: MakeModel, make_group: MakeGroup) -> list[Sample]:
    groups = [make_group(1, 30, (10, 40, 12)), make_group(2, 50, (20, 5)), make_group(3, 9, (7, 8, 30))]
    return sampled(make_model, [sample for group in groups for sample in group])


@pytest.mark.parametrize("overrides", EVERY_LOSS.values(), ids=EVERY_LOSS.keys())
def test_packing_and_micro_batches_change_no_step(
    make_model: MakeModel, samples: list[Sample], overrides: list[str]
) -> None:
    """Shared prefixes in large micro-batches, small ones, and every sample on its own with nothing shared."""
    found = []
    for budget, is_shared in ((4096, True), (90, True), (60, False)):
        trainer = trainer_of(make_model, f"compute.micro_batch_tokens={budget}", *overrides)
        alone = [sample if is_shared else replace(sample, group_id="") for sample in samples]
        # Without group ids the groups would fall apart, which only the denominator "group" and the budget's order see.
        if not is_shared and overrides in (EVERY_LOSS["groups"], EVERY_LOSS["budget"]):
            continue
        found.append(trainer.update(alone))
    for other in found[1:]:
        assert other["train/loss"] == pytest.approx(found[0]["train/loss"], rel=1e-4, abs=1e-6)
        assert other["optim/grad_norm"] == pytest.approx(found[0]["optim/grad_norm"], rel=1e-3)


@pytest.mark.parametrize("overrides", EVERY_LOSS.values(), ids=EVERY_LOSS.keys())
def test_a_sample_without_learned_tokens_changes_no_step(
    make_model: MakeModel, samples: list[Sample], overrides: list[str]
) -> None:
    silent = replace(samples[0], weight=np.zeros(len(samples[0]), np.float32), group_id="group1")
    got = trainer_of(make_model, *overrides).update([*samples, silent])
    want = trainer_of(make_model, *overrides).update(samples)
    assert got["train/loss"] == pytest.approx(want["train/loss"], rel=1e-5)
    assert got["optim/grad_norm"] == pytest.approx(want["optim/grad_norm"], rel=1e-5)


# --- corrections ---------------------------------------------------------------------------------------------------


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


def test_a_sampler_that_agrees_is_not_corrected(make_model: MakeModel, samples: list[Sample]) -> None:
    agreeing = sampled(make_model, samples, gap=0.0)
    got = trainer_of(make_model, "correction.type=truncate").update(agreeing)
    assert got["correction/bounded_frac"] == 0.0
    assert got["optim/grad_norm"] == pytest.approx(trainer_of(make_model).update(agreeing)["optim/grad_norm"], rel=1e-4)


def test_the_factor_multiplies_every_token(make_model: MakeModel, samples: list[Sample]) -> None:
    """A sampler that found each token twice as likely: half the gradient, over the same denominator."""
    agreeing = sampled(make_model, samples, gap=0.0)
    eager = [
        replace(sample, old_log_prob=sample.old_log_prob + np.float32(np.log(2)) * (sample.weight > 0))
        for sample in agreeing
    ]
    want = trainer_of(make_model).update(agreeing)
    got = trainer_of(make_model, "correction.type=truncate").update(eager)
    assert got["optim/grad_norm"] == pytest.approx(0.5 * want["optim/grad_norm"], rel=1e-3)


# --- reference, demonstrations, budget -----------------------------------------------------------------------------


def test_a_reference_is_needed_and_stays_as_it_is(make_model: MakeModel, samples: list[Sample]) -> None:
    with pytest.raises(ConfigError, match="reference model"):
        PolicyTrainer(make_model(0), config_of("kl.type=k3"))
    reference = make_model(1)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    metrics = PolicyTrainer(make_model(0), config_of("kl.type=k3"), reference=reference).update(samples)
    assert metrics["policy/kl_k3"] > 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.state_dict().items())


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_a_kl_term_pulls_towards_the_reference(make_model: MakeModel, samples: list[Sample], kind: str) -> None:
    """Without advantages only the term is left, and ten steps of it bring the policy nearer on these samples."""
    aimless = [replace(sample, advantage=0.0) for sample in sampled(make_model, samples, gap=0.0)]
    config = config_of(f"kl.type={kind}", "kl.coefficient=1.0", "optimizer.learning_rate=0.001")
    trainer = PolicyTrainer(make_model(0), config, reference=make_model(1))
    gaps = []
    for _ in range(10):
        measured = trainer.learner.measure(aimless)
        aimless = [replace(s, old_log_prob=m.log_prob) for s, m in zip(aimless, measured, strict=True)]
        reference = trainer.learner.measure(aimless, make_model(1))
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


# --- value head ----------------------------------------------------------------------------------------------------


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


def test_a_value_head_resumes_with_its_run_only(make_model: MakeModel, samples: list[Sample], tmp_path: Path) -> None:
    whole = trainer_of(make_model, *PPO)
    whole.update(samples)
    save_training_state(whole.learner, None, tmp_path / "state")
    resumed = trainer_of(make_model, *PPO)
    load_training_state(resumed.learner, tmp_path / "state")
    want, got = whole.update(samples), resumed.update(samples)
    assert got["train/loss"] == want["train/loss"]
    assert got["optim/grad_norm"] == want["optim/grad_norm"]
    with pytest.raises(InputError, match="value head"):
        load_training_state(trainer_of(make_model).learner, tmp_path / "state")


# --- preferences ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(make_group: MakeGroup) -> list[Pair]:
    """Three pairs of actions after common histories."""
    made = []
    for seed in range(3):
        chosen, rejected = make_group(seed, 20, (6, 9))
        made.append(Pair(_all_learned(chosen, 20), _all_learned(rejected, 20)))
    return made


def _all_learned(sample: Sample, start: int) -> Sample:
    weight = (np.arange(len(sample)) >= start).astype(np.float32)
    return replace(sample, weight=weight)


def autograd_dpo(model: PreTrainedModel, pairs: list[Pair], before: list[tuple[float, float]], beta: float) -> float:
    """The loss of the paper in one graph, backward included."""
    losses = []
    for pair, reference in zip(pairs, before, strict=True):
        gaps = []
        for sample, old in zip((pair.chosen, pair.rejected), reference, strict=True):
            ids = torch.from_numpy(sample.token_id).long()
            log_probs = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0]
            gaps.append((log_probs * torch.from_numpy(sample.weight[1:])).sum() - old)
        losses.append(-torch.nn.functional.logsigmoid(beta * (gaps[0] - gaps[1])))
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("micro_batch_tokens", [4096, 30])
def test_two_passes_give_the_gradient_of_the_dpo_loss(
    make_model: MakeModel, pairs: list[Pair], micro_batch_tokens: int
) -> None:
    config = StepDpoConfig(
        beta=0.3,
        num_epochs=2,
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1e9),
        compute=ComputeConfig(micro_batch_tokens=micro_batch_tokens),
    )
    trainer = PreferenceTrainer(make_model(0), config)
    plain = make_model(0)
    before = [
        tuple(float(m.log_prob.sum()) for m in trainer.learner.measure([pair.chosen, pair.rejected])) for pair in pairs
    ]
    optimiser = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for _ in range(2):
        optimiser.zero_grad()
        losses.append(autograd_dpo(plain, pairs, before, 0.3))  # type: ignore[arg-type]
        optimiser.step()
    metrics = trainer.update(pairs)
    assert losses[0] == pytest.approx(np.log(2), abs=1e-5)
    assert metrics["preference/loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    for name, parameter in trainer.learner.model.named_parameters():
        assert torch.allclose(parameter, plain.get_parameter(name), atol=2e-4), name


def test_preferences_are_learned(make_model: MakeModel, pairs: list[Pair]) -> None:
    config = StepDpoConfig(num_epochs=8, optimizer=OptimizerConfig(learning_rate=3e-3))
    trainer = PreferenceTrainer(make_model(0), config)
    trainer.update(pairs)
    sums = [[float(m.log_prob.sum()) for m in trainer.learner.measure([p.chosen, p.rejected])] for p in pairs]
    start = Learner(make_model(0), OptimizerConfig(), ComputeConfig())
    first = [[float(m.log_prob.sum()) for m in start.measure([p.chosen, p.rejected])] for p in pairs]
    assert all(now[0] - now[1] > then[0] - then[1] + 1.0 for now, then in zip(sums, first, strict=True))
    assert PreferenceTrainer(make_model(0), config).update([]) == {}


def test_what_is_no_pair_is_refused(pairs: list[Pair]) -> None:
    with pytest.raises(ValueError, match="one history"):
        Pair(pairs[0].chosen, pairs[1].rejected)
    with pytest.raises(ValueError, match="none"):
        Pair(pairs[0].chosen, replace(pairs[0].rejected, weight=np.zeros(len(pairs[0].rejected), np.float32)))


def test_measured_log_probs_are_those_of_full_forwards(model: PreTrainedModel, make_group: MakeGroup) -> None:
    """In the samples' order, whatever order packing computes them in."""
    group = make_group(1, 40, (30, 5, 12))
    measured = Learner(model, OptimizerConfig(), ComputeConfig(micro_batch_tokens=80)).measure(group)
    for sample, scores in zip(group, measured, strict=True):
        ids = torch.from_numpy(sample.token_id).long()
        with torch.no_grad():
            want = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
        assert scores.log_prob[1:] == pytest.approx(np.where(sample.weight[1:] > 0, want, 0.0), abs=1e-4)
        assert scores.value is None
