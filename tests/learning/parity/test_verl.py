"""Losses, advantages and corrections against verl 0.9.1's own functions, and what is wrong there."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from repairgym.config.algorithms import (
    AdvantageConfig,
    CispoLossConfig,
    DapoLossConfig,
    DrGrpoAdvantageConfig,
    DrGrpoLossConfig,
    GaeAdvantageConfig,
    GroupAdvantageConfig,
    GrpoLossConfig,
    GspoLossConfig,
    KlConfig,
    LossConfig,
    MaskCorrectionConfig,
    PpoLossConfig,
    ReinforcePpAdvantageConfig,
    RlooAdvantageConfig,
    TruncateCorrectionConfig,
)
from repairgym.learning.advantages import Outcome, estimate_advantages, token_advantages
from repairgym.learning.losses import clipped_value_error, kl_estimate
from repairgym.learning.preparation import correct

pytestmark = pytest.mark.parity
Compare = Callable[..., None]
GROUP_SIZE = 4
UNBOUNDED = 1e9
DUAL = 3.0


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    from verl.trainer.ppo import core_algos

    return core_algos


def actor(low: float, high: float, dual_clip: float = UNBOUNDED, **batch: Any) -> Any:
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=GROUP_SIZE,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual_clip,
    )
    config.global_batch_info.update(batch)
    return config


def theirs(
    verl: ModuleType, name: str, case: Any, mode: str, config: Any, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    log_prob = case.log_prob.clone().requires_grad_()
    loss, _ = verl.get_policy_loss_fn(name)(
        old_log_prob=case.old,
        log_prob=log_prob,
        advantages=case.advantage,
        response_mask=case.mask,
        loss_agg_mode=mode,
        config=config,
        **more,
    )
    loss.backward()
    assert log_prob.grad is not None
    return loss.detach(), log_prob.grad


# --- losses --------------------------------------------------------------------------------------------------------

SHARED: list[tuple[str, LossConfig, str, str, dict[str, float]]] = [
    ("dapo", DapoLossConfig(), "vanilla", "token-mean", {"low": 0.2, "high": 0.3}),
    (
        "dapo, dual clip",
        DapoLossConfig(dual_clip=DUAL),
        "vanilla",
        "token-mean",
        {"low": 0.2, "high": 0.3, "dual_clip": DUAL},
    ),
    ("grpo", GrpoLossConfig(), "vanilla", "seq-mean-token-mean", {"low": 0.2, "high": 0.2}),
    ("gspo", GspoLossConfig(), "gspo", "seq-mean-token-mean", {"low": 3e-4, "high": 4e-4}),
    (
        "gspo, wide bounds",
        GspoLossConfig(eps_low=0.1, eps_high=0.1),
        "gspo",
        "seq-mean-token-mean",
        {"low": 0.1, "high": 0.1},
    ),
    ("cispo", CispoLossConfig(min_ratio=0.7, max_ratio=1.4), "cispo", "token-mean", {"low": 0.3, "high": 0.4}),
]


@pytest.mark.parametrize(("name", "config", "function", "mode", "bounds"), SHARED, ids=[row[0] for row in SHARED])
def test_policy_losses(
    verl: ModuleType,
    compare: Compare,
    case: Any,
    name: str,
    config: LossConfig,
    function: str,
    mode: str,
    bounds: dict[str, float],
) -> None:
    compare(f"verl {name}", case.ours(config), theirs(verl, function, case, mode, actor(**bounds)))


def test_dr_grpo(verl: ModuleType, compare: Compare, case: Any) -> None:
    config = actor(0.2, 0.2, loss_scale_factor=100)
    want = theirs(verl, "vanilla", case, "seq-mean-token-sum-norm", config)
    compare("verl dr_grpo", case.ours(DrGrpoLossConfig(max_action_tokens=100)), want)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_corrections(verl: ModuleType, compare: Compare, case: Any, level: str, kind: str) -> None:
    """Factors of sampler and learner, here ``reference`` and ``old``, inside the DAPO loss."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    bounds = 1.5 if kind == "truncate" else "0.8_1.5"
    weights, _ = compute_rollout_correction_weights(case.old - case.reference, case.mask, level, bounds)
    cls = TruncateCorrectionConfig if kind == "truncate" else MaskCorrectionConfig
    more = {} if kind == "truncate" else {"min_ratio": 0.8}
    config = cls(level=level, max_ratio=1.5, **more)  # type: ignore[arg-type]
    factor = torch.zeros_like(case.mask)
    for row, at in enumerate(case.mask > 0):
        learner, sampler = case.old[row][at].numpy(), case.reference[row][at].numpy()
        factor[row, at] = torch.from_numpy(correct(learner, sampler, config).factor)
    compare(f"verl correction {kind}, {level}", (factor.sum(), factor), (weights.sum(), weights))
    want = theirs(verl, "vanilla", case, "token-mean", actor(0.2, 0.3), rollout_is_weights=weights)
    compare(f"verl dapo with {kind}, {level}", case.ours(DapoLossConfig(), factor=factor), want)


def test_value_loss(verl: ModuleType, compare: Compare, case: Any) -> None:
    got, want = (case.value.clone().requires_grad_() for _ in range(2))
    error, _ = clipped_value_error(got, case.old_value, case.target, 0.2)
    ours = 0.5 * (error * case.mask).sum() / case.mask.sum()
    loss, _ = verl.compute_value_loss(want, case.target, case.old_value, case.mask, 0.2)
    ours.backward()
    loss.backward()
    assert got.grad is not None
    assert want.grad is not None
    compare("verl value loss", (ours.detach(), got.grad), (loss.detach(), want.grad))


def test_ppo_policy_part(verl: ModuleType, compare: Compare, case: Any) -> None:
    want = theirs(verl, "vanilla", case, "token-mean", actor(0.2, 0.2))
    got = case.ours(PpoLossConfig(value_coefficient=1e-12))
    compare("verl ppo, policy", got, want)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators(verl: ModuleType, compare: Compare, case: Any, estimator: str) -> None:
    pairs = []
    for is_ours in (True, False):
        log_prob = case.log_prob.clone().requires_grad_()
        if is_ours:
            values = kl_estimate(log_prob - case.reference, estimator)  # type: ignore[arg-type]
        else:
            values = verl.kl_penalty(log_prob, case.reference, estimator)
        values.sum().backward()
        assert log_prob.grad is not None
        pairs.append((values.sum().detach(), log_prob.grad))
    compare(f"verl kl {estimator}", pairs[0], pairs[1])


def test_kl_in_the_loss(verl: ModuleType, compare: Compare, case: Any) -> None:
    log_prob = case.log_prob.clone().requires_grad_()
    penalty = verl.agg_loss(verl.kl_penalty(log_prob, case.reference, "k3"), case.mask, "token-mean")
    (0.1 * penalty).backward()
    assert log_prob.grad is not None
    loss, gradient = theirs(verl, "vanilla", case, "token-mean", actor(0.2, 0.3))
    want = loss + 0.1 * penalty.detach(), gradient + log_prob.grad
    compare("verl dapo with kl k3", case.ours(DapoLossConfig(), KlConfig(type="k3", coefficient=0.1)), want)


# --- advantages ----------------------------------------------------------------------------------------------------


def at_last_token(case: Any, rewards: torch.Tensor) -> torch.Tensor:
    """[rows, width] with each trajectory's reward at its last action token."""
    placed = torch.zeros_like(case.mask)
    last = case.mask.shape[1] - 1 - case.mask.flip(1).argmax(1)
    placed[torch.arange(len(placed)), last] = rewards
    return placed


def ours_of(case: Any, rewards: torch.Tensor, config: AdvantageConfig) -> torch.Tensor:
    """[rows] advantages by our estimator."""
    outcomes = [Outcome(float(r), int(n)) for r, n in zip(rewards, case.mask.sum(1), strict=True)]
    groups = [outcomes[start : start + GROUP_SIZE] for start in range(0, len(outcomes), GROUP_SIZE)]
    return torch.tensor([value for results in estimate_advantages(groups, config) for value in results.values]).double()


def check_advantages(compare: Compare, name: str, case: Any, got: torch.Tensor, want: torch.Tensor) -> None:
    matrix = got[:, None] * case.mask if got.dim() == 1 else got * case.mask
    compare(name, (matrix.abs().sum(), matrix), ((want * case.mask).abs().sum(), want * case.mask))


def test_group_normalized(verl: ModuleType, compare: Compare, case: Any, rewards: torch.Tensor) -> None:
    """verl divides by the sample deviation, n - 1; paper B's equation and ours by the population's."""
    want, _ = verl.compute_grpo_outcome_advantage(at_last_token(case, rewards), case.mask, case.groups, epsilon=1e-12)
    got = ours_of(case, rewards, GroupAdvantageConfig(delta=1e-12))
    check_advantages(compare, "verl group", case, got * ((GROUP_SIZE - 1) / GROUP_SIZE) ** 0.5, want)


def test_dr_grpo_advantage(verl: ModuleType, compare: Compare, case: Any, rewards: torch.Tensor) -> None:
    want, _ = verl.compute_grpo_outcome_advantage(
        at_last_token(case, rewards), case.mask, case.groups, norm_adv_by_std_in_grpo=False
    )
    check_advantages(compare, "verl dr_grpo advantage", case, ours_of(case, rewards, DrGrpoAdvantageConfig()), want)


def test_rloo(verl: ModuleType, compare: Compare, case: Any, rewards: torch.Tensor) -> None:
    want, _ = verl.compute_rloo_outcome_advantage(at_last_token(case, rewards), case.mask, case.groups)
    check_advantages(compare, "verl rloo", case, ours_of(case, rewards, RlooAdvantageConfig()), want)


def test_reinforce_pp(verl: ModuleType, compare: Compare, case: Any, rewards: torch.Tensor) -> None:
    """verl whitens with the sample deviation over tokens; ours is the population's."""
    from verl.trainer.config import AlgoConfig

    num_tokens = float(case.mask.sum())
    scale = ((num_tokens - 1) / num_tokens) ** 0.5
    placed = at_last_token(case, rewards)
    want, _ = verl.compute_reinforce_plus_plus_outcome_advantage(placed, case.mask, config=AlgoConfig(gamma=1.0))
    got = ours_of(case, rewards, ReinforcePpAdvantageConfig(delta=1e-12))
    check_advantages(compare, "verl reinforce_pp", case, got * scale, want)
    want, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(placed, case.mask, case.groups)
    got = ours_of(case, rewards, ReinforcePpAdvantageConfig(baseline="group_mean", delta=1e-12))
    check_advantages(compare, "verl reinforce_pp, group mean", case, got * scale, want)


@pytest.mark.parametrize(("discount", "trace"), [(1.0, 1.0), (0.97, 0.9)])
def test_gae(
    verl: ModuleType, compare: Compare, case: Any, rewards: torch.Tensor, discount: float, trace: float
) -> None:
    want, returns = verl.compute_gae_advantage_return(
        at_last_token(case, rewards), case.old_value, case.mask, discount, trace
    )
    config = GaeAdvantageConfig(token_discount=discount, token_lambda=trace, turn_discount=discount, turn_lambda=trace)
    got = torch.zeros_like(want)
    for row, at in enumerate(case.mask > 0):
        value = case.old_value[row][at].numpy()
        reward = np.zeros(len(value))
        reward[-1] = float(rewards[row])
        got[row, at] = torch.from_numpy(token_advantages(value, reward, np.zeros(len(value)), config))
    check_advantages(compare, "verl gae targets", case, got + case.old_value, returns)
    every = got[case.mask > 0]
    check_advantages(compare, "verl gae, whitened", case, (got - every.mean()) / every.std(), want)


# --- what is wrong there -------------------------------------------------------------------------------------------


def test_a_lone_survivor_gets_its_raw_reward_from_verl_and_nothing_from_us(verl: ModuleType, case: Any) -> None:
    """Nobody to compare with: an advantage of 1 is no comparison, it makes whatever was done more likely."""
    rewards, mask = torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    for function in (verl.compute_grpo_outcome_advantage, verl.compute_rloo_outcome_advantage):
        wrong, _ = function(rewards, mask, np.array([0]))
        assert wrong[0, 0] == pytest.approx(1.0, abs=1e-5)
    for config in (GroupAdvantageConfig(), DrGrpoAdvantageConfig(), RlooAdvantageConfig()):
        (results,) = estimate_advantages([[Outcome(1.0), Outcome(None)]], config)
        assert results.values == (0.0, 0.0)
        assert results.drop_reason == "too_few_valid"


def test_a_reward_on_a_masked_token_counts_in_verl(verl: ModuleType) -> None:
    """Both answers are worth 0 under the mask, so there is nothing to learn; verl sums rewards without the mask.

    Our rewards are of verdicts, one per trajectory: there is no token whose reward a mask could forget.
    """
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    wrong, _ = verl.compute_grpo_outcome_advantage(rewards, mask, np.array([0, 0]))
    assert wrong[:, 0].tolist() == pytest.approx([0.7071, -0.7071], abs=1e-3)
    (results,) = estimate_advantages([[Outcome(0.0), Outcome(0.0)]], GroupAdvantageConfig())
    assert results.values == (0.0, 0.0)
