"""Losses against hand values and scalar re-derivations; test_losses_conformance has what all policy losses share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from repairgym.config.algorithms import (
    CispoLossConfig,
    DapoLossConfig,
    DrGrpoLossConfig,
    GrpoLossConfig,
    GspoLossConfig,
    KlConfig,
    LossConfig,
    PpoLossConfig,
)
from repairgym.learning.losses import policy_loss, preference_loss, sft_loss
from repairgym.learning.packing.forward import TokenScores

DAPO = DapoLossConfig(eps_low=0.2, eps_high=0.3)


def new_scores(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None, rows: list[int] | None = None
) -> TokenScores:
    old = torch.full((len(ratios),), -1.0)
    log_prob = (old + torch.tensor(ratios).log()).requires_grad_()
    weight = torch.tensor(weights or [1.0] * len(ratios))
    row = torch.tensor(rows or [0] * len(ratios))
    return TokenScores(log_prob, torch.ones_like(old), old, torch.tensor(advantages), weight, row)


def loss_of(config: LossConfig, given: TokenScores, normalizer: float) -> float:
    return float(policy_loss(config)(given, normalizer).loss.detach())


def gradient_of(config: LossConfig, given: TokenScores, normalizer: float) -> list[float]:
    policy_loss(config)(given, normalizer).loss.backward()
    assert given.log_prob.grad is not None
    return given.log_prob.grad.tolist()


FIVE = ([1.0, 1.5, 0.5, 1.5, 0.5], [1.0, 2.0, 2.0, -1.0, -1.0])


def test_dapo_hand_values() -> None:
    out = policy_loss(DAPO)(new_scores(*FIVE), 10.0)
    # 1*1 + 1.3*2 (clipped) + 0.5*2 - 1.5*1 - 0.8*1 (clipped) = 2.3
    assert float(out.loss.detach()) == pytest.approx(-0.23, abs=1e-6)
    assert float(out.metric_sums["policy/clip_high_frac"]) == 1
    assert float(out.metric_sums["policy/clip_low_frac"]) == 1
    assert float(out.metric_sums["policy/ratio_mean"]) == pytest.approx(5.0)
    assert float(out.metric_sums["policy/entropy"]) == 5
    gap = sum(abs(math.log(ratio)) for ratio in (1.5, 0.5, 1.5, 0.5))
    assert float(out.metric_sums["policy/log_prob_gap"]) == pytest.approx(gap, abs=1e-5)


SKEWED = ([1.0, 1.5, 1.5, 0.5, 6.0], [1.0, 2.0, 1.0, -1.0, -1.0])


@pytest.mark.parametrize(
    ("config", "high", "low"),
    [
        (DAPO, 2, 1),  # the last is not bounded: its advantage is negative
        (GrpoLossConfig(), 2, 1),
        (CispoLossConfig(min_ratio=0.7, max_ratio=1.2), 3, 1),  # whatever the advantage
    ],
)
def test_ratios_are_counted_on_the_side_where_they_are_bounded(config: LossConfig, high: int, low: int) -> None:
    sums = policy_loss(config)(new_scores(*SKEWED), 1.0).metric_sums
    assert (float(sums["policy/clip_high_frac"]), float(sums["policy/clip_low_frac"])) == (high, low)


def test_dapo_gradient_is_zero_exactly_where_it_is_clipped() -> None:
    # d/dlogp of -rho * A is -rho * A
    assert gradient_of(DAPO, new_scores(*FIVE), 1.0) == pytest.approx([-1.0, 0.0, -1.0, 1.5, 0.0], abs=1e-6)


def equation_8(given: TokenScores, normalizer: float, low: float, high: float) -> float:
    """Token by token with `math`, as the paper writes it."""
    total = 0.0
    columns = (given.log_prob, given.old_log_prob, given.advantage, given.weight)
    for log_prob, old, advantage, weight in zip(*[column.tolist() for column in columns], strict=True):
        rho = math.exp(log_prob - old)
        clipped = min(max(rho, 1 - low), 1 + high)
        total += weight * min(rho * advantage, clipped * advantage)
    return -total / normalizer


def test_dapo_equals_the_paper_token_by_token() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 200
    ratios = (0.5 * torch.randn(count, generator=generator)).exp().tolist()
    weights = (torch.rand(count, generator=generator) < 0.8).float().tolist()
    given = new_scores(ratios, torch.randn(count, generator=generator).tolist(), weights)
    config = DapoLossConfig(eps_high=0.28)
    assert loss_of(config, given, sum(weights)) == pytest.approx(equation_8(given, sum(weights), 0.2, 0.28), abs=1e-5)


def test_grpo_and_dr_grpo_clip_on_both_sides_alike() -> None:
    # 1 + 1.2*2 (clipped) + 1 - 1.5 - 0.8 (clipped) = 2.1
    assert loss_of(GrpoLossConfig(), new_scores(*FIVE), 10.0) == pytest.approx(-0.21, abs=1e-6)
    assert loss_of(DrGrpoLossConfig(), new_scores(*FIVE), 10.0) == pytest.approx(-0.21, abs=1e-6)


def test_dual_clip_bounds_what_a_negative_advantage_can_cost() -> None:
    given = new_scores([10.0, 10.0, 2.0], [-1.0, 1.0, -1.0])
    # -3 (dual clip) + 1.3 (clipped) - 2
    assert loss_of(DAPO.model_copy(update={"dual_clip": 3.0}), given, 1.0) == pytest.approx(3.7, abs=1e-5)
    assert gradient_of(DAPO.model_copy(update={"dual_clip": 3.0}), given, 1.0) == pytest.approx([0, 0, 2.0], abs=1e-5)


def test_gspo_clips_the_geometric_mean_of_a_sequence() -> None:
    # Sequence 0: sqrt(2 * 0.5) = 1; sequence 1: sqrt(4) = 2, bounded by 1.3; sequence 2: one token, 0.5, A < 0, to 0.8.
    given = new_scores(
        [2.0, 0.5, 4.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0, -1.0], [0.5, 0.5, 0.5, 0.5, 1.0], [0, 0, 1, 1, 2]
    )
    config = GspoLossConfig(eps_low=0.2, eps_high=0.3)
    assert loss_of(config, given, 3.0) == pytest.approx(-(1.0 + 1.3 - 0.8) / 3, abs=1e-6)
    # s_0 = 1 is within the bounds: -s_0 * A / L_0 / 3 for each of its tokens, however far their own ratios are off.
    assert gradient_of(config, given, 3.0) == pytest.approx([-1 / 6, -1 / 6, 0, 0, 0], abs=1e-6)


def test_cispo_keeps_the_gradient_of_a_bounded_token() -> None:
    given = new_scores([8.0, 0.5], [1.0, -2.0])
    config = CispoLossConfig(max_ratio=5.0)
    log_probs = given.log_prob.tolist()
    assert loss_of(config, given, 2.0) == pytest.approx(-(5 * 1 * log_probs[0] + 0.5 * -2 * log_probs[1]) / 2, abs=1e-5)
    assert gradient_of(config, given, 2.0) == pytest.approx([-2.5, 0.5], abs=1e-6)


def with_values(given: TokenScores, value: list[float], old: list[float], target: list[float]) -> TokenScores:
    return replace(
        given,
        value=torch.tensor(value, requires_grad=True),
        old_value=torch.tensor(old),
        value_target=torch.tensor(target),
    )


def test_ppo_adds_the_larger_of_the_two_value_errors() -> None:
    given = with_values(new_scores([1.0, 1.0], [0.0, 0.0]), [1.0, 0.1], [0.0, 0.0], [1.0, 1.0])
    # Token 0: error 0, with the step bounded at 0.2 it is 0.64 and has no gradient; token 1: 0.81 both ways.
    config = PpoLossConfig(value_clip=0.2, value_coefficient=0.5)
    sums = policy_loss(config)(given, 2.0).metric_sums
    assert float(sums["value/clip_frac"]) == 1
    assert float(sums["value/squared_error"]) == pytest.approx(0.81)
    assert loss_of(config, given, 2.0) == pytest.approx(0.5 * 0.5 * (0.64 + 0.81) / 2, abs=1e-6)
    policy_loss(config)(given, 2.0).loss.backward()
    assert given.value is not None
    assert given.value.grad == pytest.approx(torch.tensor([0.0, 0.5 * 0.5 * 2 * -0.9 / 2]), abs=1e-6)


def test_ppo_without_values_is_rejected() -> None:
    with pytest.raises(ValueError, match="value head"):
        policy_loss(PpoLossConfig())(new_scores([1.0], [1.0]), 1.0)


@pytest.mark.parametrize(
    ("estimator", "want", "slope"),
    [("k2", 0.5 * 0.3**2, 0.3), ("k3", math.exp(-0.3) - 1 + 0.3, 1 - math.exp(-0.3))],
)
def test_kl_terms_by_hand(estimator: str, want: float, slope: float) -> None:
    given = new_scores([1.0, 1.0], [0.0, 0.0])
    given = replace(given, reference_log_prob=given.log_prob.detach() - 0.3)
    out = policy_loss(DAPO, KlConfig(type=estimator, coefficient=0.1))(given, 2.0)  # type: ignore[arg-type]
    assert float(out.loss.detach()) == pytest.approx(0.1 * want, abs=1e-6)
    assert float(out.metric_sums[f"policy/kl_{estimator}"]) == pytest.approx(2 * want, abs=1e-5)
    out.loss.backward()
    assert given.log_prob.grad == pytest.approx(torch.full((2,), 0.1 * slope / 2), abs=1e-6)


def test_k1_is_reported_and_not_in_the_loss() -> None:
    given = new_scores([1.0], [1.0])
    given = replace(given, reference_log_prob=given.log_prob.detach() - 0.3)
    out = policy_loss(DAPO, KlConfig(type="k1", coefficient=0.1))(given, 1.0)
    assert float(out.loss.detach()) == pytest.approx(-1.0)
    assert float(out.metric_sums["policy/kl_k1"]) == pytest.approx(0.3, abs=1e-6)


def test_a_kl_term_without_reference_is_rejected() -> None:
    with pytest.raises(ValueError, match="reference"):
        policy_loss(DAPO, KlConfig())(new_scores([1.0], [1.0]), 1.0)


def test_preference_loss_by_hand() -> None:
    losses, derivatives = preference_loss(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 1.0]), beta=0.5)
    assert losses.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-1))])
    assert derivatives.tolist() == pytest.approx([-0.25, -0.5 / (1 + math.exp(1))])


def test_sft_hand_values() -> None:
    log_prob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    given = replace(new_scores([1.0] * 3, [1.0] * 3, [1.0, 0.5, 2.0]), log_prob=log_prob)
    out = sft_loss(given, 4.0)
    assert float(out.loss.detach()) == pytest.approx((1 + 1 + 6) / 4)
    assert float(out.metric_sums["sft/nll"]) == pytest.approx(6.0)
    out.loss.backward()
    assert log_prob.grad == pytest.approx(torch.tensor([-0.25, -0.125, -0.5]))
