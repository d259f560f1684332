"""Step-level DPO on stored groups (Agent Q, arXiv 2408.07199): the offline road beside policy gradients.

1. Find actions that were taken after one history and ended differently (`action_pairs`).
2. Make the better one more probable than the worse, relative to the model that this starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repairgym.config.learning import StepDpoConfig
from repairgym.config.training import StepDpoCommandConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.learning.checkpoints import save_model
from repairgym.learning.distributed.fsdp import training_device
from repairgym.learning.preferences import Pair, PreferenceTrainer
from repairgym.rollout.store import RunStore
from repairgym.training.action_pairs import action_pairs
from repairgym.training.processes import assign


def step_dpo(store: RunStore, start: Path, target: Path, config: StepDpoCommandConfig) -> dict[str, float]:
    """From model folder ``start`` to model folder ``target``; returns the update's metrics.

    Raises:
        TaskError: no history of the phase was left by two actions whose values differ enough.
    """
    pairs = action_pairs(store.trajectories(phase=config.phase), config.min_gap, config.max_per_task)
    if not pairs:
        raise TaskError(
            f"phase {config.phase!r} has no two actions after one history that differ by more than {config.min_gap} in "
            "reward; sample more trajectories per task (repairgym rollout num_samples=8), or lower min_gap"
        )
    work = PreferenceWork(start, target, pairs, config.step_dpo)
    assign(work)
    trainer, metrics = work.learn()
    metrics["preference/num_pairs"] = float(len(pairs))
    store.add_metrics(f"train/{target.name}", trainer.learner.optimiser.num_done, metrics)
    return metrics


@dataclass(frozen=True)
class PreferenceWork:
    """The update as work for several processes."""

    start: Path
    target: Path
    pairs: list[Pair]
    config: StepDpoConfig

    def learn(self) -> tuple[PreferenceTrainer, dict[str, float]]:
        """Learn and save; every process calls it."""
        trainer = PreferenceTrainer(load_model(self.start, device=training_device()), self.config)
        metrics = trainer.update(self.pairs)
        save_model(trainer.learner, load_tokenizer(self.start), self.target)
        return trainer, metrics

    def follow(self) -> None:
        """Take part in the leader's `step_dpo`."""
        self.learn()
