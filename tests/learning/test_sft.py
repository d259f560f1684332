"""Supervised training."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from repairgym.config.learning import OptimizerConfig, SftConfig
from repairgym.learning.samples import text_sample
from repairgym.learning.sft import SftTrainer

TEXTS = [text_sample([(start + step * 7) % 120 for step in range(20)]) for start in range(12)]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_supervised_training_learns_a_pattern(model: PreTrainedModel, kind: str) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(type=kind, learning_rate=1e-2, muon_learning_rate=0.02), batch_size=4, num_epochs=5
    )
    steps = list(SftTrainer.for_samples(model, config, len(TEXTS)).fit(TEXTS))
    assert len(steps) == 15
    assert steps[-1]["sft/nll"] < 0.6 * steps[0]["sft/nll"]
