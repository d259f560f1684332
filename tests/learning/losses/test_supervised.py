"""SFT and preference losses by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from repairgym.learning.losses import preference_loss, sft_loss
from repairgym.learning.packing.forward import TokenScores


def new_scores(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None, rows: list[int] | None = None
) -> TokenScores:
    old = torch.full((len(ratios),), -1.0)
    log_prob = (old + torch.tensor(ratios).log()).requires_grad_()
    weight = torch.tensor(weights or [1.0] * len(ratios))
    row = torch.tensor(rows or [0] * len(ratios))
    return TokenScores(log_prob, torch.ones_like(old), old, torch.tensor(advantages), weight, row)


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
