"""What each process of `test_parallel.py` runs: FOLDER KIND NUM_STEPS. Goes on from ``FOLDER/state``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from mendwright.config.learning import ComputeConfig, FullConfig, LoraConfig, OptimizerConfig, SftConfig
from mendwright.config.models import ModelConfig
from mendwright.learning.checkpoints import STATE_FILE, load_training_state, save_training_state
from mendwright.learning.parallel import process_group
from mendwright.learning.samples import Sample
from mendwright.learning.sft import SftTrainer
from mendwright.models.loading import create_model

SMALL = ModelConfig(
    vocab_size=120, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=64
)


def samples() -> list[Sample]:
    """Three groups with a common start, 12 sequences."""
    made = []
    for number in range(12):
        generator = np.random.default_rng(number)
        start = np.random.default_rng(number % 3).integers(0, 120, 30)
        ids = np.concatenate([start, generator.integers(0, 120, 5 + number)]).astype(np.int32)
        weight = (np.arange(len(ids)) >= 30).astype(np.float32)
        made.append(Sample(ids, weight, np.zeros(len(ids), np.float32)))
    return made


def main(folder: Path, kind: str, num_steps: int) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3),
        compute=ComputeConfig(micro_batch_tokens=90, is_checkpointing=kind == "tied"),
        batch_size=6,
        num_epochs=2,
        trained=LoraConfig(rank=4) if kind == "lora" else FullConfig(),
    )
    model = create_model(SMALL.model_copy(update={"is_tied": kind == "tied"}))
    with process_group() as world:
        trainer = SftTrainer.for_samples(model, config, len(samples()))
        state = folder / "state"
        if (state / STATE_FILE).is_file():
            load_training_state(trainer.learner, state)
        metrics = {}
        for metrics in trainer.fit(samples()):
            if trainer.learner.optimiser.num_done == num_steps:
                break
        save_training_state(trainer.learner, None, state)
        if world.is_leader:
            (folder / "metrics.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
