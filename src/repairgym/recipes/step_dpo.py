"""Step-level DPO on stored groups (Agent Q, arXiv 2408.07199): an offline alternative to policy gradients.

1. Find actions that were taken after one history and ended differently (`action_pairs`).
2. Make the better one more probable than the worse, relative to the model that this starts from.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from repairgym.config.learning import StepDpoConfig
from repairgym.config.recipes import StepDpoCommandConfig
from repairgym.errors import TaskError
from repairgym.inference.loading import load_tokenizer
from repairgym.learning.export import save_model
from repairgym.learning.preferences import Pair, PreferenceTrainer
from repairgym.learning.samples import Sample
from repairgym.learning.weight_loading import open_model
from repairgym.records import Trajectory
from repairgym.rollout.store import RunStore
from repairgym.training.processes import assign
from repairgym.training.supervised import check_graded


def step_dpo(store: RunStore, start: Path, target: Path, config: StepDpoCommandConfig) -> dict[str, float]:
    """From model folder ``start`` to model folder ``target``; returns the update's metrics.

    Raises:
        TaskError: no history of the phase was left by two actions whose values differ enough.
    """
    pairs = stored_pairs(store, config)
    work = PreferenceWork(start, target, pairs, config.step_dpo)
    assign(work)
    trainer, metrics = work.learn()
    metrics["preference/num_pairs"] = float(len(pairs))
    store.add_metrics(f"train/{target.name}", trainer.learner.optimizer.num_done, metrics)
    return metrics


def stored_pairs(store: RunStore, config: StepDpoCommandConfig) -> list[Pair]:
    """Return the pairs of a stored run; raises as `step_dpo` and `check_graded`.

    Sorted by id: the order in which episodes happened to end must not decide between equal gaps.
    """
    check_graded(config.phase)
    stored = sorted(store.trajectories(phase=config.phase), key=lambda trajectory: trajectory.id)
    pairs = action_pairs(stored, config.min_gap, config.max_per_task)
    if not pairs:
        raise TaskError(
            f"phase {config.phase!r} has no two actions after one history that differ by more than {config.min_gap} in "
            "reward; sample more trajectories per task (repairgym rollout num_samples=8), or lower min_gap"
        )
    return pairs


@dataclass(frozen=True)
class PreferenceWork:
    """The update as work for several processes."""

    start: Path
    target: Path
    pairs: list[Pair]
    config: StepDpoConfig

    def learn(self) -> tuple[PreferenceTrainer, dict[str, float]]:
        """Learn and save; every process calls it."""
        trainer = PreferenceTrainer(open_model(self.start), self.config)
        metrics = trainer.update(self.pairs)
        save_model(trainer.learner, load_tokenizer(self.start), self.target)
        return trainer, metrics

    def follow(self) -> None:
        """Take part in the leader's `step_dpo`."""
        self.learn()


def action_pairs(
    trajectories: Iterable[Trajectory], min_gap: float, max_per_task: int, critic_weight: float = 0.0
) -> list[Pair]:
    """Pairs of sibling actions in one task, at most ``max_per_task``, those with the largest gap first.

    ``min_gap`` is the least difference of the values, above 0 (Agent Q's theta, which it does not state). A value is
    the mean reward of the episodes that took the action, branches included, mixed with the rank of its mean
    log-probability among its siblings where ``critic_weight`` is above 0.
    """
    pairs: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
    for (task_id, _), actions in _siblings(trajectories).items():
        ranks = _ranks(actions)
        valued = sorted(
            ((1.0 - critic_weight) * float(np.mean(rewards)) + critic_weight * ranks[action], action)
            for action, (rewards, _) in actions.items()
        )
        gap = valued[-1][0] - valued[0][0]
        if len(valued) > 1 and gap > min_gap:
            best, worst = (actions[valued[at][1]][1] for at in (-1, 0))
            pairs[task_id].append((gap, Pair(best, worst)))
    return [
        pair
        for task_pairs in pairs.values()
        for _, pair in sorted(task_pairs, key=lambda scored: -scored[0])[:max_per_task]
    ]


def _ranks(actions: dict[bytes, tuple[list[float], Sample]]) -> dict[bytes, float]:
    """Rank sibling actions by the mean log-probability of their tokens, from 0 to 1; ties share their mean rank."""
    means = [float(sample.old_log_prob[sample.weight > 0].mean()) for _, sample in actions.values()]
    ranks = (rankdata(means) - 1.0) / max(1, len(means) - 1)
    return dict(zip(actions, map(float, ranks), strict=True))


_History = tuple[str, bytes]
"""A task and the tokens of everything before the action."""


def _siblings(trajectories: Iterable[Trajectory]) -> dict[_History, dict[bytes, tuple[list[float], Sample]]]:
    """By history, by action: rewards of the trajectories that took it, and the action as a sample.

    A branch counts for the turns that it shares, too, whose tokens another episode sampled.
    """
    siblings: dict[_History, dict[bytes, tuple[list[float], Sample]]] = defaultdict(dict)
    for trajectory in trajectories:
        ledger = trajectory.ledger
        for start, end in (turn.action_span for turn in trajectory.turns if trajectory.verdict.is_valid):
            history = np.asarray(ledger.prompt_of((start, end)) if start < end else (), dtype=np.int32)
            if len(history):
                action, log_prob = ledger.token_id[start:end], ledger.log_prob[start:end]
                actions = siblings[trajectory.task_id, history.tobytes()]
                new: tuple[list[float], Sample] = ([], _action_sample(history, action, log_prob))
                rewards, _ = actions.setdefault(action.tobytes(), new)
                rewards.append(trajectory.verdict.reward)
    return siblings


def _action_sample(history: np.ndarray, action: np.ndarray, log_prob: np.ndarray) -> Sample:
    nothing = np.zeros(len(history), dtype=np.float32)
    return Sample(
        np.concatenate([history, action]),
        np.concatenate([nothing, np.ones(len(action), dtype=np.float32)]),
        np.concatenate([nothing, log_prob]).astype(np.float32),
    )
