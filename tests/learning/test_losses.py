"""Losses against hand values, a scalar re-derivation and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from mendwright.learning.forward import TokenScores
from mendwright.learning.losses import LOSSES, LossSettings, dapo_loss, sft_loss


def scores(log_prob: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, weight: torch.Tensor) -> TokenScores:
    return TokenScores(log_prob, torch.ones_like(old), old, advantage, weight)


def new_scores(ratios: list[float], advantages: list[float], weights: list[float] | None = None) -> TokenScores:
    old = torch.full((len(ratios),), -1.0)
    log_prob = (old + torch.tensor(ratios).log()).requires_grad_()
    return scores(log_prob, old, torch.tensor(advantages), torch.tensor(weights or [1.0] * len(ratios)))


def equation_8(given: TokenScores, normaliser: float, low: float, high: float) -> float:
    """Token by token with `math`, as the paper writes it."""
    total = 0.0
    columns = (given.log_prob, given.old_log_prob, given.advantage, given.weight)
    for log_prob, old, advantage, weight in zip(*[column.tolist() for column in columns], strict=True):
        rho = math.exp(log_prob - old)
        clipped = min(max(rho, 1 - low), 1 + high)
        total += weight * min(rho * advantage, clipped * advantage)
    return -total / normaliser


def test_dapo_hand_values() -> None:
    given = new_scores([1.0, 1.5, 0.5, 1.5, 0.5], [1.0, 2.0, 2.0, -1.0, -1.0])
    out = dapo_loss(given, LossSettings(normaliser=10.0, eps_low=0.2, eps_high=0.3))
    # 1*1 + 1.3*2 (clipped) + 0.5*2 - 1.5*1 - 0.8*1 (clipped) = 2.3
    assert float(out.loss.detach()) == pytest.approx(-0.23, abs=1e-6)
    assert float(out.metric_sums["dapo/clip_high_frac"]) == 1
    assert float(out.metric_sums["dapo/clip_low_frac"]) == 1
    assert float(out.metric_sums["dapo/ratio_mean"]) == pytest.approx(5.0)
    assert float(out.metric_sums["policy/entropy"]) == 5
    gap = sum(abs(math.log(ratio)) for ratio in (1.5, 0.5, 1.5, 0.5))
    assert float(out.metric_sums["policy/log_prob_gap"]) == pytest.approx(gap, abs=1e-5)


def test_dapo_gradient_is_zero_exactly_where_it_is_clipped() -> None:
    given = new_scores([1.0, 1.5, 0.5, 1.5, 0.5], [1.0, 2.0, 2.0, -1.0, -1.0])
    dapo_loss(given, LossSettings(normaliser=1.0)).loss.backward()
    # d/dlogp of -rho * A is -rho * A
    assert given.log_prob.grad == pytest.approx(torch.tensor([-1.0, 0.0, -1.0, 1.5, 0.0]), abs=1e-6)


def test_dapo_equals_the_paper_token_by_token() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 200
    old = -3 * torch.rand(count, generator=generator)
    log_prob = old + 0.5 * torch.randn(count, generator=generator)
    advantage = torch.randn(count, generator=generator)
    weight = (torch.rand(count, generator=generator) < 0.8).float()
    given = scores(log_prob, old, advantage, weight)
    out = dapo_loss(given, LossSettings(normaliser=float(weight.sum()), eps_low=0.2, eps_high=0.28))
    assert float(out.loss.detach()) == pytest.approx(equation_8(given, float(weight.sum()), 0.2, 0.28), abs=1e-5)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_equal_finite_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(30, generator=generator, dtype=torch.float64)
    advantage, weight = torch.randn(30, generator=generator).double(), torch.rand(30, generator=generator).double()

    def loss(log_prob: torch.Tensor) -> torch.Tensor:
        return LOSSES[name](scores(log_prob, old, advantage, weight), LossSettings(normaliser=7.0)).loss

    start = (old + 0.4 * torch.randn(30, generator=generator)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (start,), eps=1e-7, atol=1e-6)


def test_dapo_survives_a_policy_that_has_moved_far() -> None:
    given = new_scores([1.0, 1.0], [-1.0, 1.0])
    far = scores((given.log_prob + 1000.0).detach().requires_grad_(), given.old_log_prob, given.advantage, given.weight)
    out = dapo_loss(far, LossSettings(normaliser=1.0))
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert torch.isfinite(far.log_prob.grad).all()


def test_sft_hand_values() -> None:
    log_prob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    given = scores(log_prob, torch.zeros(3), torch.ones(3), torch.tensor([1.0, 0.5, 2.0]))
    out = sft_loss(given, LossSettings(normaliser=4.0))
    assert float(out.loss.detach()) == pytest.approx((1 + 1 + 6) / 4)
    assert float(out.metric_sums["sft/nll"]) == pytest.approx(6.0)
    out.loss.backward()
    assert log_prob.grad == pytest.approx(torch.tensor([-0.25, -0.125, -0.5]))
