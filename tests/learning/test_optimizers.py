"""Optimizers: schedules, hand values, clipping."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import OptimizerConfig
from repairgym.learning.optimizers import Optimizer, schedule_factor

FAST = OptimizerConfig(learning_rate=1e-2)


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def test_schedules() -> None:
    cosine = OptimizerConfig(num_warmup_steps=10, schedule="cosine", final_lr_ratio=0.1)
    factors = [schedule_factor(cosine, step, 110) for step in (0, 4, 9, 10, 60, 110, 500)]
    assert factors == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    linear = OptimizerConfig(schedule="linear")
    assert [schedule_factor(linear, step, 4) for step in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert schedule_factor(OptimizerConfig(), 10**6, None) == 1.0


def test_a_decaying_schedule_needs_its_length(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="number of steps"):
        Optimizer(model, OptimizerConfig(schedule="cosine"))


def test_adamw_step_by_hand(model: PreTrainedModel) -> None:
    """First AdamW step: every weight moves by lr against the gradient's sign; matrices also decay."""
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.5, max_grad_norm=1e9)
    optimizer = Optimizer(model, config)
    before = weights(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    matrix, vector = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
    after = model.state_dict()
    assert torch.allclose(after[matrix], before[matrix] * (1 - 0.005) - 0.01, atol=1e-6)
    assert torch.allclose(after[vector], before[vector] - 0.01, atol=1e-6)


def test_clipping_bounds_the_gradient_and_reports_its_norm(model: PreTrainedModel) -> None:
    optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=1.0))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert optimizer.step()["optim/grad_norm"] == pytest.approx(count**0.5, rel=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing(model: PreTrainedModel) -> None:
    optimizer = Optimizer(model, FAST)
    before = weights(model)
    next(model.parameters()).grad = torch.full_like(next(model.parameters()), float("nan"))
    assert optimizer.step()["optim/num_skipped"] == 1
    assert_equal(weights(model), before)


def test_muon_leaves_embeddings_and_vectors_to_adamw(model: PreTrainedModel) -> None:
    parts = Optimizer(model, OptimizerConfig(type="muon")).summary()["num_updates"]
    adamw, muon = ([len(group) for group in part] for part in parts)
    num_hidden = sum(1 for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    assert muon == [num_hidden]
    assert sum(adamw) + num_hidden == len(list(model.parameters()))
