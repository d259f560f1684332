"""Audit: what training rewarded, graded again with every gate.

Reads the trajectories of a phase; stores copies under ``audit/<phase>`` with the verdicts of a grading that no policy
was trained against. Invariants: the grading has every gate; which trajectories are audited follows from their ids; what
is stored is not graded again, so that an interrupted audit goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from repairgym.config.evaluation import AuditConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ConfigError, InputError
from repairgym.grading.grader import Grader
from repairgym.grading.judge import open_judge
from repairgym.records import Task, Trajectory, Verdict
from repairgym.rollout.names import audit_id, audit_phase
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.concurrency import as_they_end
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.training.progress import Progress, no_progress


async def audit(
    store: RunStore,
    tasks: Mapping[str, Task],
    config: AuditConfig,
    grader: Grader,
    progress: Progress = no_progress,
) -> int:
    """Grade the chosen trajectories of ``config.phase`` again; returns how many the audit holds.

    Raises:
        ConfigError: the grading leaves a gate out.
        InputError: the phase has no trajectory, or one of a task that is not in ``tasks``.
    """
    if config.grading.disabled_gates:
        raise ConfigError(
            f"an audit needs every gate, got a grading without {', '.join(config.grading.disabled_gates)}"
        )
    chosen = choose_audited(store.rows(phase=config.phase), config.num_per_step)
    if not chosen:
        raise InputError(f"{store.path} holds no valid trajectory of phase {config.phase!r}")
    stored = store.trajectory_ids(phase=audit_phase(config.phase))
    missing = [store.trajectory(row.id) for row in chosen if audit_id(row.id) not in stored]
    num_done = len(chosen) - len(missing)
    phase = audit_phase(config.phase)
    steps = {row.id: row for row in chosen}
    with store.phase(phase):
        async for trajectory, verdict in grade_again(missing, tasks, grader, config.num_in_flight):
            row = steps[trajectory.id]
            copy = replace(trajectory, id=audit_id(trajectory.id), verdict=verdict)
            store.add_trajectory(copy, phase=phase, step=row.step, split=row.split)
            num_done += 1
            progress(phase, num_done, len(chosen), "")
    return num_done


def choose_audited(rows: Sequence[TrajectoryRow], num_per_step: int) -> list[TrajectoryRow]:
    """At most ``num_per_step`` rewarded-or-not valid rows of each step (0: all), chosen by the digest of their ids."""
    by_step: dict[int, list[TrajectoryRow]] = {}
    for row in rows:
        if row.reward is not None:
            by_step.setdefault(row.step, []).append(row)
    found: list[TrajectoryRow] = []
    for step in sorted(by_step):
        ordered = sorted(by_step[step], key=lambda row: hashlib.sha256(row.id.encode()).digest())
        found += ordered[: num_per_step or None]
    return found


async def grade_again(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], grader: Grader, num_in_flight: int
) -> AsyncIterator[tuple[Trajectory, Verdict]]:
    """(trajectory, new verdict) as the gradings end.

    Raises:
        InputError: a trajectory's task is not in ``tasks``.
    """
    unknown = sorted({one.task_id for one in trajectories} - tasks.keys())
    if unknown:
        raise InputError(f"{len(unknown)} tasks of the run are not in the task folder, the first: {unknown[0]}")
    gate = asyncio.Semaphore(num_in_flight)

    async def one(trajectory: Trajectory) -> tuple[Trajectory, Verdict]:
        async with gate:
            verdict = await grader.grade(tasks[trajectory.task_id], trajectory.final_files, trajectory.turns)
            return trajectory, verdict

    async with aclosing(as_they_end(one(trajectory) for trajectory in trajectories)) as found:
        async for pair in found:
            yield pair


def open_grader(sandbox: SandboxConfig, grading: GradingConfig) -> tuple[SandboxBackend, Grader]:
    """A back end that isolates, and a grader on it; the caller closes the back end.

    Raises:
        SandboxUnavailableError: nothing that isolates works here.
    """
    backend = create_backend(sandbox, "evaluation")
    layers = LayerStore()
    grader = Grader(
        backend,
        lambda task, files: task_layers(task, layers).spec(files, sandbox.limits),
        grading,
        ExecutionCache(max_entries=0) if grading.is_cold else ExecutionCache(),
        open_judge(grading.judge),
    )
    return backend, grader
