"""Evaluation of a policy on a test set, and cold regrading of what was rewarded.

Reads tasks and a policy; makes trajectories under phase ``eval/<stage>/<test set>``. Invariants: evaluation never
trains, each task has the same number of samples, and stored episodes are not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mendwright.config.pipeline import GradingConfig, check_undemonstrated
from mendwright.config.sandbox import SandboxConfig
from mendwright.grading.grader import Grader
from mendwright.recipes.run import Run
from mendwright.records import Task, Trajectory, VerdictKind
from mendwright.rollout.jobs import PolicyRef, make_groups
from mendwright.rollout.phases import eval_phase
from mendwright.sandbox.cache import ExecutionCache
from mendwright.sandbox.probe import create_backend, require_isolation
from mendwright.tasks.layers import LayerStore
from mendwright.tasks.validation import task_layers


def evaluate(run: Run, stage: str, policy: PolicyRef, test_set: str, tasks: Sequence[Task], num_samples: int) -> float:
    """Run ``policy`` ``num_samples`` times on each of ``tasks``; returns the mean Pass@1 with invalid as failed.

    Raises:
        ConfigError: the sandbox does not isolate, and that is not allowed for an evaluation; a worked example is shown.
        SandboxUnavailableError: nothing that isolates works here.
    """
    phase = eval_phase(stage, test_set)
    if not tasks:
        return 0.0
    require_isolation(run.sandbox)
    check_undemonstrated(run.pool.config.pipeline)
    with run.store.phase(phase, {"num_tasks": len(tasks), "num_samples": num_samples}):
        # The seed is that of the run, not of the stage: stages are compared on the same tasks and sample numbers.
        jobs = make_groups(phase, 0, [task.id for task in tasks], num_samples, run.seed)
        trajectories = run.run_jobs(policy, jobs, phase=phase, label=f"eval {stage} {test_set}")
    rewarded = sum(t.verdict.kind is VerdictKind.PASSED for t in trajectories)
    return rewarded / max(1, len(trajectories))


@dataclass(frozen=True)
class Regrade:
    """What a cold regrading found."""

    num_regraded: int
    num_confirmed: int
    refuted: tuple[str, ...]
    """Ids of trajectories whose reward does not hold."""
    invalid: tuple[str, ...]


async def regrade_cold(
    trajectories: Sequence[Trajectory], tasks: dict[str, Task], sandbox: SandboxConfig, num_in_flight: int = 4
) -> Regrade:
    """Grade again, each in a fresh sandbox with a new interpreter and no cache."""
    backend = create_backend(sandbox, "evaluation")
    store = LayerStore()
    grader = Grader(
        backend,
        lambda task, files: task_layers(task, store).spec(files, sandbox.limits),
        GradingConfig(is_cold=True),
        ExecutionCache(max_entries=0),
    )
    gate = asyncio.Semaphore(num_in_flight)

    async def one(trajectory: Trajectory) -> VerdictKind:
        async with gate:
            return (await grader.grade(tasks[trajectory.task_id], trajectory.final_files)).kind

    try:
        kinds = await asyncio.gather(*(one(trajectory) for trajectory in trajectories))
    finally:
        await backend.close()
    pairs = list(zip(trajectories, kinds, strict=True))
    return Regrade(
        num_regraded=len(pairs),
        num_confirmed=sum(kind is VerdictKind.PASSED for kind in kinds),
        refuted=tuple(t.id for t, kind in pairs if kind in (VerdictKind.FAILED, VerdictKind.EXPLOITED)),
        invalid=tuple(t.id for t, kind in pairs if kind is VerdictKind.INVALID),
    )
