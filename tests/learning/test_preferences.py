"""Step-level DPO: the gradient of the paper, in two passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import ComputeConfig, OptimizerConfig, StepDpoConfig
from repairgym.learning.learner import Learner
from repairgym.learning.preferences import Pair, PreferenceTrainer
from repairgym.learning.samples import Sample

MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]


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
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(autograd_dpo(plain, pairs, before, 0.3))  # type: ignore[arg-type]
        optimizer.step()
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


def test_samples_that_form_no_pair_are_rejected(pairs: list[Pair]) -> None:
    with pytest.raises(ValueError, match="one history"):
        Pair(pairs[0].chosen, pairs[1].rejected)
    with pytest.raises(ValueError, match="none"):
        Pair(pairs[0].chosen, replace(pairs[0].rejected, weight=np.zeros(len(pairs[0].rejected), np.float32)))
