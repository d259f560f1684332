"""Properties of every registered loss: add a loss and these tests run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch

from repairgym.config.algorithms import DapoLossConfig, KlConfig, LossConfig
from repairgym.learning.losses import POLICY_LOSSES, Loss, linear_loss, policy_loss, sft_loss
from repairgym.learning.packing.forward import TokenScores

CONFIGS: dict[str, LossConfig] = {
    member.model_fields["type"].default: member() for member in get_args(get_args(LossConfig)[0])
}
LOSSES: dict[str, Loss] = {
    **{name: policy_loss(config) for name, config in CONFIGS.items()},
    **{
        f"dapo+{name}": policy_loss(DapoLossConfig(), KlConfig(type=name, coefficient=0.1))
        for name in ("k1", "k2", "k3")
    },
    "linear": linear_loss,
    "sft": sft_loss,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
LENGTHS = (1, 5, 9, 2, 7)


def new_scores(seed: int = 1, spread: float = 0.4) -> TokenScores:
    """Five sequences with everything a loss may read, float64."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(LENGTHS)

    def normal() -> torch.Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    old = -torch.rand(count, generator=generator, dtype=torch.float64) - 0.5
    row = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    weight = (1.0 / torch.tensor(LENGTHS, dtype=torch.float64))[row]
    advantage = torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64)[row]
    log_prob = (old + spread * normal()).requires_grad_()
    value = normal().requires_grad_()
    return TokenScores(
        log_prob, old.abs(), old, advantage, weight, row, old + 0.1 * normal(), normal(), normal(), value
    )


def at_rows(scores: TokenScores, rows: list[int]) -> TokenScores:
    """Some sequences of ``scores``, counted from 0 again: another micro-batch."""
    is_chosen = torch.isin(scores.row, torch.tensor(rows))
    parts = {field.name: getattr(scores, field.name)[is_chosen] for field in fields(scores)}
    counted = torch.unique(parts["row"], return_inverse=True)[1]
    return TokenScores(**{**parts, "row": counted})


def gradients(loss: Callable[[], torch.Tensor], scores: TokenScores) -> list[torch.Tensor]:
    assert scores.value is not None
    results = torch.autograd.grad(loss(), [scores.log_prob, scores.value], allow_unused=True)
    return [torch.zeros_like(scores.log_prob) if part is None else part for part in results]


def test_every_member_of_the_union_is_registered() -> None:
    assert set(POLICY_LOSSES) == set(CONFIGS)


# CISPO detaches a part of itself, so its value is no function whose derivative it takes; it has a test of its own.
@pytest.mark.parametrize("loss", [LOSSES[name] for name in sorted(LOSSES) if name != "cispo"])
def test_gradients_equal_finite_differences(loss: Loss) -> None:
    scores = new_scores()

    def value_of(log_prob: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return loss(replace(scores, log_prob=log_prob, value=value), 7.0).loss

    assert scores.value is not None
    assert torch.autograd.gradcheck(value_of, (scores.log_prob, scores.value), eps=1e-7, atol=1e-6)


def test_cispo_is_the_derivative_it_claims() -> None:
    scores = new_scores()
    importance = (scores.log_prob - scores.old_log_prob).exp().clamp(max=5.0).detach()

    def frozen() -> torch.Tensor:
        return -(importance * scores.advantage * scores.log_prob * scores.weight).sum() / 7.0

    got = gradients(lambda: LOSSES["cispo"](scores, 7.0).loss, scores)
    assert torch.allclose(got[0], gradients(frozen, scores)[0])


@every_loss
def test_shares_of_micro_batches_sum_to_the_loss(loss: Loss) -> None:
    scores = new_scores()
    whole = loss(scores, 5.0)
    whole_gradients = gradients(lambda: loss(scores, 5.0).loss, scores)
    for cut in ([[0], [1], [2], [3], [4]], [[4, 0], [2, 1, 3]], [[0, 1, 2, 3], [4]]):
        parts = [at_rows(scores, rows) for rows in cut]
        outs = [loss(part, 5.0) for part in parts]
        assert sum(out.loss.item() for out in outs) == pytest.approx(whole.loss.item(), abs=1e-12)
        for name, value in whole.metric_sums.items():
            assert sum(float(out.metric_sums[name]) for out in outs) == pytest.approx(float(value), abs=1e-9), name
        split = gradients(lambda parts=parts: torch.stack([loss(part, 5.0).loss for part in parts]).sum(), scores)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(split, whole_gradients, strict=True))


@every_loss
def test_tokens_without_weight_have_no_gradient(loss: Loss) -> None:
    scores = new_scores()
    is_padding = scores.row == 2
    padded = replace(scores, weight=torch.where(is_padding, 0.0, scores.weight))
    kept = at_rows(scores, [0, 1, 3, 4])
    assert loss(padded, 5.0).loss.item() == pytest.approx(loss(kept, 5.0).loss.item(), abs=1e-12)
    for gradient in gradients(lambda: loss(padded, 5.0).loss, padded):
        assert not gradient[is_padding].any()


@every_loss
def test_the_normalizer_is_the_denominator(loss: Loss) -> None:
    scores = new_scores()
    assert loss(scores, 10.0).loss.item() == pytest.approx(loss(scores, 5.0).loss.item() / 2, abs=1e-12)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_at_the_old_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    """With ratio 1 every policy loss pushes a token by its advantage; they differ after the first step."""
    scores = new_scores(spread=0.0)
    got = gradients(lambda: LOSSES[name](scores, 5.0).loss, scores)[0]
    want = -(scores.advantage * scores.weight) / 5.0
    assert torch.allclose(got, want, atol=1e-12)


@every_loss
def test_a_policy_that_has_moved_far_leaves_everything_finite(loss: Loss) -> None:
    scores = new_scores()
    for shift in (-1000.0, 1000.0):
        far = replace(scores, log_prob=(scores.log_prob.detach().float() + shift).requires_grad_())
        out = loss(far, 1.0)
        (gradient,) = torch.autograd.grad(out.loss, [far.log_prob])
        assert torch.isfinite(out.loss)
        assert torch.isfinite(gradient).all()


def curve(loss: Loss) -> list[float]:
    """Losses of four steps of plain gradient descent on the log-probabilities and values."""
    scores = new_scores()
    losses = []
    for _ in range(4):
        assert scores.value is not None
        out = loss(scores, 5.0)
        losses.append(out.loss.item())
        by_log_prob, by_value = gradients(lambda out=out: out.loss, scores)  # type: ignore[misc]
        log_prob = (scores.log_prob - 0.5 * by_log_prob).detach().requires_grad_()
        scores = replace(scores, log_prob=log_prob, value=(scores.value - 0.5 * by_value).detach().requires_grad_())
    return losses


GOLDEN_CURVES = {
    "dapo": (-0.81498429, -0.84617410, -0.88453635, -0.92876746),
    "grpo": (-0.78202775, -0.81312987, -0.85149213, -0.87043766),
    "degrpo": (-0.78202775, -0.81312987, -0.85149213, -0.87043766),
    "dr_grpo": (-0.78202775, -0.81312987, -0.85149213, -0.87043766),
    "gspo": (-0.74117250, -0.74449160, -0.74790862, -0.75142848),
    "cispo": (0.74515201, 0.69302467, 0.57811612, 0.30945082),
    "ppo": (-0.11308354, -0.15041210, -0.19485899, -0.21975188),
    "dapo+k1": (-0.81498429, -0.84617410, -0.88453635, -0.92876746),
    "dapo+k2": (-0.80445218, -0.83642326, -0.87528497, -0.91970929),
    "dapo+k3": (-0.80450842, -0.83665169, -0.87567313, -0.92026463),
    "linear": (0.75128159, 0.67960028, 0.60791897, 0.53623766),
    "sft": (0.94341588, 0.90433652, 0.86525715, 0.82617779),
}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_golden_curves(name: str) -> None:
    """Whoever changes one of these numbers changes the algorithm, and says so."""
    assert curve(LOSSES[name]) == pytest.approx(GOLDEN_CURVES[name], abs=1e-7)
