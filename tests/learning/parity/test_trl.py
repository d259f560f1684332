"""Losses against TRL 1.16.0's own `GRPOTrainer._compute_loss`. Its advantages are no function that could be called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

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
)

pytestmark = pytest.mark.parity
ROWS, WIDTH = 12, 24
Compare = Callable[..., None]


class Accelerator:
    """One process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def reduce(self, value: torch.Tensor, reduction: str) -> torch.Tensor:
        return value


def new_trainer(log_prob: torch.Tensor, **settings: Any) -> SimpleNamespace:
    """The parts of a trainer that `_compute_loss` reads; our log-probabilities replace those of a model."""
    defaults: dict[str, Any] = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "accelerator": Accelerator(),
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "_metrics": {"train": defaultdict(list)},
        "max_completion_length": WIDTH,
        "_get_per_token_logps_and_entropies": lambda *_, **__: (log_prob, torch.zeros_like(log_prob), None),
    }
    return SimpleNamespace(**{**defaults, **settings})


def theirs(case: Any, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from trl.trainer.grpo_trainer import GRPOTrainer

    log_prob = case.log_prob.clone().requires_grad_()
    ids = torch.zeros(len(case.mask), WIDTH, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(len(ids), 1),
        "completion_ids": ids,
        # The completion is everything that was written; the tool mask takes the observations out.
        "completion_mask": torch.ones_like(case.mask),
        "tool_mask": case.mask,
        "advantages": case.advantage[:, 0],
        "old_per_token_logps": case.old,
        "ref_per_token_logps": case.reference,
        "num_items_in_batch": case.mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(new_trainer(log_prob, **settings), None, inputs)
    loss.backward()
    assert log_prob.grad is not None
    return loss.detach(), log_prob.grad


SHARED: list[tuple[str, LossConfig, dict[str, Any]]] = [
    ("dapo", DapoLossConfig(), {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.3}),
    ("grpo", GrpoLossConfig(), {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2}),
    (
        "dr_grpo",
        DrGrpoLossConfig(max_action_tokens=WIDTH),
        {"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    ),
    ("cispo", CispoLossConfig(max_ratio=1.2), {"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 1.2}),
    (
        "gspo",
        GspoLossConfig(),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
]


@pytest.mark.parametrize(("name", "config", "settings"), SHARED, ids=[row[0] for row in SHARED])
def test_losses(compare: Compare, case: Any, name: str, config: LossConfig, settings: dict[str, Any]) -> None:
    compare(f"trl {name}", case.ours(config), theirs(case, **settings))


def test_kl(compare: Compare, case: Any) -> None:
    want = theirs(case, loss_type="dapo", epsilon_low=0.2, epsilon_high=0.3, beta=0.1)
    compare("trl dapo with kl k3", case.ours(DapoLossConfig(), KlConfig(type="k3", coefficient=0.1)), want)


def test_a_trajectory_without_learned_tokens_makes_trls_grpo_smaller(case: Any) -> None:
    """TRL divides by all rows, also by those whose tokens are all masked; ours is the mean of what is learned."""
    mask = case.mask.clone()
    mask[0] = 0.0
    silent = replace(case, mask=mask)
    ours = silent.ours(GrpoLossConfig())[0]
    wrong = theirs(silent, loss_type="grpo", epsilon_low=0.2, epsilon_high=0.2)[0]
    assert float(wrong) == pytest.approx(float(ours) * (ROWS - 1) / ROWS)
