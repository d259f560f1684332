"""However a batch is cut, packed or lengthened, every algorithm makes the same step; and the step is the one it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig, SftConfig
from repairgym.config.loading import load_config
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample
from repairgym.learning.sft import SftTrainer

MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
ALGORITHMS: dict[str, list[str]] = {
    "dapo": [],
    "dapo_group": ["loss.denominator=group"],
    "grpo": ["loss.type=grpo"],
    "grpo_turn": ["loss.type=grpo", "loss.denominator=turn"],
    "dr_grpo": ["loss.type=dr_grpo", "advantage.type=dr_grpo"],
    "gspo": ["loss.type=gspo", "loss.eps_low=0.2", "loss.eps_high=0.2"],
    "cispo": ["loss.type=cispo"],
    "ppo": ["loss.type=ppo", "advantage.type=gae"],
    "corrected": ["correction.type=truncate"],
    "k3": ["kl.type=k3", "kl.coefficient=0.1"],
}
GOLDEN = {
    "dapo": (0.40336, 1.61206),
    "dapo_group": (0.43489, 1.55645),
    "grpo": (0.58724, 2.45730),
    "grpo_turn": (0.57449, 2.44485),
    "dr_grpo": (0.00311, 0.01323),
    "gspo": (0.51464, 1.53159),
    "cispo": (-1.66454, 2.15898),
    "ppo": (0.24919, 1.60740),
    "corrected": (0.38548, 1.77432),
    "k3": (0.42113, 1.66647),
}
"""(loss, gradient norm), means over the two steps of the update."""
EVERY = {"num_epochs": 2, "batch_size": 6}


def one_update(
    make_model: MakeModel, samples: list[Sample], overrides: list[str], micro_batch_tokens: int
) -> tuple[dict[str, float], PreTrainedModel]:
    config = load_config(AlgorithmConfig, None, overrides).model_copy(
        update={
            **EVERY,
            "optimizer": OptimizerConfig(learning_rate=1e-3, max_grad_norm=1e9),
            "compute": ComputeConfig(micro_batch_tokens=micro_batch_tokens),
        }
    )
    model = make_model(0)
    reference = None if config.kl.type == "none" else make_model(1)
    return PolicyTrainer(model, config, reference=reference).update(samples), model


def batch(make_group: MakeGroup) -> list[Sample]:
    return [
        replace(
            sample,
            old_log_prob=np.where(sample.weight > 0, np.float32(-5.0), np.float32(0.0)),
            turn=np.where(sample.weight > 0, np.arange(len(sample)) // 12, -1).astype(np.int32),
            reward=1.0,
        )
        for seed, lengths in ((1, (10, 40, 12)), (2, (20, 5)), (3, (8, 9, 30)))
        for sample in make_group(seed, 30, lengths)
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_packing_and_trailing_tokens_change_nothing(
    make_model: MakeModel, make_group: MakeGroup, name: str
) -> None:
    """Besides, loss and gradient norm are golden: whoever changes one changes the algorithm, and says so."""
    samples = batch(make_group)
    lengthened = [
        replace(
            sample,
            token_id=np.append(sample.token_id, np.arange(5, dtype=np.int32)),
            weight=np.append(sample.weight, np.zeros(5, np.float32)),
            old_log_prob=np.append(sample.old_log_prob, np.zeros(5, np.float32)),
            turn=np.append(sample.turn, np.full(5, -1, np.int32)),
        )
        for sample in samples
    ]
    want, model = one_update(make_model, samples, ALGORITHMS[name], 4096)
    assert (want["train/loss"], want["optim/grad_norm"]) == pytest.approx(GOLDEN[name], rel=1e-2)
    for variant, budget in ((samples, 90), (lengthened, 4096)):
        got, other = one_update(make_model, variant, ALGORITHMS[name], budget)
        assert got["train/loss"] == pytest.approx(want["train/loss"], rel=1e-4, abs=1e-6)
        assert got["optim/grad_norm"] == pytest.approx(want["optim/grad_norm"], rel=1e-4)
        for parameter, wanted in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.allclose(parameter, wanted, atol=3e-4)


GOLDEN_CURVE = [5.05608, 4.87215, 4.49931, 4.3159]


def test_golden_curve_of_supervised_training(make_model: MakeModel, make_group: MakeGroup) -> None:
    config = SftConfig(optimizer=OptimizerConfig(learning_rate=3e-3), batch_size=4, num_epochs=2)
    trainer = SftTrainer.for_samples(make_model(0), config, 8)
    curve = [metrics["sft/nll"] for metrics in trainer.fit(batch(make_group))]
    assert curve == pytest.approx(GOLDEN_CURVE, rel=1e-2)
