"""Supervised stages: imitation of the teacher (SFT) and of the policy's own successes (RFT, paper B section 4.2).

Reads training tasks; makes trajectories in the store and a checkpoint per stage. Invariants: only passed trajectories
are learned (exploited ones are not), at most `max_per_task` of a task, equal action sequences once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mendwright.config.learning import SftConfig
from mendwright.config.recipes import CollectConfig
from mendwright.errors import TaskError
from mendwright.learning.histories import split_histories
from mendwright.learning.samples import Sample, supervised_sample
from mendwright.learning.sft import SftTrainer, num_steps_of
from mendwright.models.loading import load_model, load_tokenizer, save_checkpoint
from mendwright.recipes.progress import Progress
from mendwright.recipes.run import Run
from mendwright.records import Trajectory, VerdictKind
from mendwright.rollout.jobs import PolicyRef, make_groups
from mendwright.rollout.store import RunStore


def collect_successes(run: Run, policy: PolicyRef, config: CollectConfig, phase: str) -> list[Trajectory]:
    """Run ``policy`` on training tasks and keep what passed.

    Raises:
        TaskError: nothing passed.
    """
    tasks = run.training_tasks(config.num_tasks)
    jobs = make_groups(phase, 0, [task.id for task in tasks], config.num_samples, run.seed)
    trajectories = run.run_jobs(policy, jobs, phase=phase)
    kept = keep_successes(trajectories, config.max_per_task)
    run.store.add_metrics(phase, 0, {"rft/num_rollouts": len(trajectories), "rft/num_kept": len(kept)})
    if not kept:
        raise TaskError(f"{phase}: none of {len(trajectories)} trajectories passed, so there is nothing to imitate")
    return kept


def keep_successes(trajectories: Iterable[Trajectory], max_per_task: int) -> list[Trajectory]:
    """Passed trajectories, equal action sequences once, at most ``max_per_task`` of each task."""
    count: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    kept = []
    for trajectory in trajectories:
        key = (trajectory.task_id, *(turn.action for turn in trajectory.turns))
        is_new = key not in seen and count[trajectory.task_id] < max_per_task
        if trajectory.verdict.kind is VerdictKind.PASSED and is_new:
            seen.add(key)
            count[trajectory.task_id] += 1
            kept.append(trajectory)
    return kept


def supervised_samples(trajectories: Iterable[Trajectory], config: SftConfig) -> list[Sample]:
    """Trajectories as samples, format-error turns masked when the config says so."""
    return [
        supervised_sample(history, is_format_error_masked=config.is_format_error_masked)
        for trajectory in trajectories
        for history in split_histories(trajectory)
    ]


def fit_samples(
    start: Path, target: Path, samples: list[Sample], config: SftConfig, store: RunStore, progress: Progress
) -> None:
    """Fit ``samples`` from model folder ``start`` and save model folder ``target``; metrics go under its name."""
    model = load_model(start)
    trainer = SftTrainer.for_samples(model, config, len(samples))
    total = num_steps_of(config, len(samples))
    for step, metrics in enumerate(trainer.fit(samples), 1):
        store.add_metrics(f"train/{target.name}", step, metrics)
        progress(f"train {target.name}", step, total, f"loss {metrics.get('train/loss', 0.0):.3f}")
    save_checkpoint(model, load_tokenizer(start), target)


def continue_supervised(
    run: Run, start: str, stage: str, samples: list[Sample], config: SftConfig, cpu_s: float
) -> int:
    """Control: supervised training from ``start`` on ``samples`` until it has used ``cpu_s`` CPU seconds.

    Returns:
        Optimiser steps done. The learning rate is constant at the stage's peak, as in RL.
    """
    constant = config.model_copy(
        update={"num_epochs": 1_000_000, "optimizer": config.optimizer.model_copy(update={"schedule": "constant"})}
    )
    model = load_model(run.checkpoint(start))
    trainer = SftTrainer(model, constant)
    started = time.process_time()
    step = 0
    for step, metrics in enumerate(trainer.fit(samples), 1):
        used_s = time.process_time() - started
        run.store.add_metrics(f"train/{stage}", step, metrics)
        run.progress(f"train {stage}", int(used_s), int(cpu_s), f"loss {metrics.get('train/loss', 0.0):.3f}")
        if used_s >= cpu_s:
            break
    save_checkpoint(model, load_tokenizer(run.checkpoint(start)), run.checkpoint(stage))
    return step
