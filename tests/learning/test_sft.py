"""Supervised training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedModel

from repairgym.config.learning import OptimizerConfig, SftConfig
from repairgym.errors import ConfigError
from repairgym.learning.samples import text_sample
from repairgym.learning.sft import SftTrainer, learnable

TEXTS = [text_sample([(start + step * 7) % 120 for step in range(20)]) for start in range(12)]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_supervised_training_learns_a_pattern(model: PreTrainedModel, kind: str) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(type=kind, learning_rate=1e-2, muon_learning_rate=0.02), batch_size=4, num_epochs=5
    )
    steps = list(SftTrainer.for_samples(model, config, len(TEXTS)).fit(TEXTS))
    assert len(steps) == 15
    assert steps[-1]["sft/nll"] < 0.6 * steps[0]["sft/nll"]


def test_samples_without_a_learned_token_are_left_out(model: PreTrainedModel) -> None:
    """Their batch would be no step, and come again for ever."""
    masked = replace(TEXTS[0], weight=np.zeros(len(TEXTS[0]), np.float32))
    assert learnable([TEXTS[1], masked, TEXTS[2]]) == [TEXTS[1], TEXTS[2]]
    assert learnable([]) == []
    with pytest.raises(ConfigError, match="every turn is masked"):
        learnable([masked])
    trainer = SftTrainer(model, SftConfig(batch_size=1))
    with pytest.raises(ValueError, match="none of the 1 samples"):
        list(trainer.fit([masked]))
