"""Step-level DPO on stored groups (Agent Q, arXiv 2408.07199): the offline road beside policy gradients.

1. Find actions that were taken after one history and ended differently (`action_pairs`).
2. Make the better one more probable than the worse, relative to the model that this starts from.
"""

from __future__ import annotations

from pathlib import Path

from mendwright.config.training import StepDpoCommandConfig
from mendwright.errors import TaskError
from mendwright.learning.checkpoints import save_model
from mendwright.learning.parallel import training_device
from mendwright.learning.preferences import PreferenceTrainer
from mendwright.models.loading import load_model, load_tokenizer
from mendwright.recipes.action_pairs import action_pairs
from mendwright.rollout.store import RunStore


def step_dpo(store: RunStore, start: Path, target: Path, config: StepDpoCommandConfig) -> dict[str, float]:
    """From model folder ``start`` to model folder ``target``; returns the update's metrics.

    Raises:
        TaskError: no history of the phase was left by two actions whose values differ enough.
    """
    pairs = action_pairs(store.trajectories(phase=config.phase), config.min_gap, config.max_per_task)
    if not pairs:
        raise TaskError(
            f"phase {config.phase!r} has no two actions after one history that differ by more than {config.min_gap} in "
            "reward; sample more trajectories per task (mend rollout num_samples=8), or lower min_gap"
        )
    trainer = PreferenceTrainer(load_model(start, device=training_device()), config.step_dpo)
    metrics = trainer.update(pairs) | {"preference/num_pairs": float(len(pairs))}
    store.add_metrics(f"train/{target.name}", trainer.learner.optimiser.num_done, metrics)
    save_model(trainer.learner, load_tokenizer(start), target)
    return metrics
