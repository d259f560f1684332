"""Evaluation of a policy on a test set, and cold regrading of what was rewarded.

Reads tasks and a policy; makes trajectories under phase ``eval/<stage>/<test set>``. Invariants: evaluation never
trains, each task has the same number of samples, and stored episodes are not run again.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from repairgym.config.commands import AuditConfig
from repairgym.config.pipeline import GradingConfig, check_undemonstrated
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError
from repairgym.grading.grader import Grader
from repairgym.grading.judge import open_judge
from repairgym.grading.replayed import ReplayJudge
from repairgym.grading.stages import Files
from repairgym.records import Task, Trajectory, Verdict, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.names import audit_id, audit_phase, eval_phase
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend, require_isolation
from repairgym.tasks.build.concurrency import as_completed
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.selection import read_ids
from repairgym.training.run import Progress, Run, no_progress


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
    phase = audit_phase(config.phase)
    chosen = {row.id: row for row in choose_audited(store.rows(phase=config.phase), config.num_per_step)}
    if not chosen:
        raise InputError(f"{store.path} holds no valid trajectory of phase {config.phase!r}")
    stored = store.trajectory_ids(phase=phase)
    missing = [store.trajectory(id_) for id_ in chosen if audit_id(id_) not in stored]
    num_done = len(chosen) - len(missing)
    with store.phase(phase):
        async for trajectory, verdict in grade_again(missing, tasks, grader, config.num_in_flight):
            row = chosen[trajectory.id]
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
    audited: list[TrajectoryRow] = []
    for step in sorted(by_step):
        ordered = sorted(by_step[step], key=lambda row: hashlib.sha256(row.id.encode()).digest())
        audited += ordered[: num_per_step or None]
    return audited


async def grade_again(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], grader: Grader, num_in_flight: int
) -> AsyncIterator[tuple[Trajectory, Verdict]]:
    """(trajectory, new verdict) as the gradings end.

    Raises:
        InputError: a trajectory's task is not in ``tasks``.
    """
    unknown = sorted({trajectory.task_id for trajectory in trajectories} - tasks.keys())
    if unknown:
        raise InputError(f"{len(unknown)} tasks of the run are not in the task folder, the first: {unknown[0]}")
    gate = asyncio.Semaphore(num_in_flight)

    async def regrade(trajectory: Trajectory) -> tuple[Trajectory, Verdict]:
        async with gate:
            verdict = await grader.grade(tasks[trajectory.task_id], trajectory.final_files, trajectory.turns)
            return trajectory, verdict

    async with aclosing(as_completed(regrade(trajectory) for trajectory in trajectories)) as gradings:
        async for pair in gradings:
            yield pair


def open_grader(
    sandbox: SandboxConfig, grading: GradingConfig, layers: LayerStore | None = None
) -> tuple[SandboxBackend, Grader]:
    """A back end that isolates, and a grader on it; the caller closes the back end.

    Raises:
        SandboxUnavailableError: nothing that isolates works here.
    """
    backend = create_backend(sandbox, "evaluation")
    layers = layers or LayerStore()

    def make_spec(task: Task, files: Files) -> SandboxSpec:
        return task_layers(task, layers).spec(files, sandbox.limits)

    grader = Grader(
        backend,
        make_spec,
        grading,
        ExecutionCache(max_entries=0) if grading.is_cold else ExecutionCache(),
        open_judge(grading.judge),
        ReplayJudge.open(backend, make_spec, grading, layers),
    )
    return backend, grader


_PROBE_BYTES = 4 << 20
_SCHEDULING = ("num_workers", "max_in_flight", "max_attempts", "max_failures_in_row")
"""Settings of a rollout that decide when episodes run, not what comes of them."""


def evaluate(
    run: Run,
    stage: str,
    policy: PolicyRef,
    test_set: str,
    tasks: Sequence[Task],
    num_samples: int,
    *,
    fingerprint: Mapping[str, str] | None = None,
) -> float:
    """Run ``policy`` ``num_samples`` times on each of ``tasks``; returns the mean Pass@1 with invalid as failed.

    ``fingerprint`` (`policy_fingerprint`) and the run's seed are stored with the phase; a resumed phase must have the
    same.

    Raises:
        ConfigError: the sandbox does not isolate, and that is not allowed for an evaluation; a worked example is shown.
        InputError: the phase was begun with another fingerprint.
        SandboxUnavailableError: nothing that isolates works here.
    """
    phase = eval_phase(stage, test_set)
    if not tasks:
        return 0.0
    require_isolation(run.sandbox)
    check_undemonstrated(run.pool.config.pipeline)
    identity = with_seed(fingerprint or {}, run.seed)
    check_fingerprint(run.store, phase, identity)
    with run.store.phase(phase, {"num_tasks": len(tasks), "num_samples": num_samples, **identity}):
        # The seed is that of the run, not of the stage: stages are compared on the same tasks and sample numbers.
        jobs = make_groups(phase, 0, [task.id for task in tasks], num_samples, run.seed)
        trajectories = run.run_jobs(policy, jobs, phase=phase, label=f"eval {stage} {test_set}")
    rewarded = sum(t.verdict.kind is VerdictKind.PASSED for t in trajectories)
    return rewarded / max(1, len(trajectories))


def validation_metrics(rows: Sequence[TrajectoryRow]) -> dict[str, float]:
    """Return Pass@1 and, with n > 1 episodes of each task, Pass@n of one validation; invalid counts as failed."""
    passed = Counter(row.task_id for row in rows if row.verdict is VerdictKind.PASSED)
    num_tasks = len({row.task_id for row in rows})
    if not num_tasks:
        return {}
    metrics = {"validation/pass_at_1": passed.total() / len(rows)}
    num_samples, rest = divmod(len(rows), num_tasks)
    if num_samples > 1 and not rest:
        metrics[f"validation/pass_at_{num_samples}"] = len(passed) / num_tasks
    return metrics


def policy_fingerprint(policy: PolicyRef, rollout: RolloutConfig) -> dict[str, str]:
    """Return digests of the policy (weights or name, temperature) and of the settings that decide its episodes."""
    scheduling = {name: RolloutConfig.model_fields[name].default for name in _SCHEDULING}
    identity = f"{policy.temperature}\0{'' if policy.folder else policy.name}".encode()
    return {
        "policy_digest": weights_digest(policy.folder, identity),
        "rollout_digest": rollout.model_copy(update=scheduling).digest(),
    }


def selection_fingerprint(selection: TaskSelection) -> dict[str, str]:
    """Return a digest of what decides a set of tasks and is no part of its name (`TaskSelection.set_name`).

    The number of tasks is left out: a set may grow.
    """
    ids = sorted({name for file in selection.id_files for name in read_ids(Path(file))})
    parts = [ids, selection.is_specified_only, selection.is_told_only]
    return {"select_digest": hashlib.sha256(json.dumps(parts).encode()).hexdigest()}


def with_seed(fingerprint: Mapping[str, str], seed: int) -> dict[str, str]:
    """Return ``fingerprint`` with the seed of the run: samples of two seeds have the same ids."""
    return {**fingerprint, "seed": str(seed)}


def named_fingerprint(name: str, fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return ``fingerprint`` under the name of a policy, for a phase with the episodes of several."""
    return {f"{name}/{key}": value for key, value in fingerprint.items()}


def check_fingerprint(store: RunStore, phase: str, fingerprint: Mapping[str, str]) -> None:
    """Reject a phase that was started with another fingerprint; parts that it has not stored are accepted.

    Raises:
        InputError: the stored fingerprint is another one.
    """
    stored = next((row.detail for row in store.phases() if row.name == phase), {})
    for key, value in fingerprint.items():
        if stored.get(key, value) != value:
            name, _, part = key.removesuffix("_digest").rpartition("/")
            raise InputError(
                f"{phase} of {store.path} was begun with another {part}{f' of the name {name!r}' if name else ''}; "
                "name another stage, phase or run folder, or resume with the same one"
            )


def weights_digest(folder: str | Path, prefix: bytes = b"") -> str:
    """SHA-256 (hex) over ``prefix`` and name, size, head and tail of each file of weights; empty folder name: none."""
    digest = hashlib.sha256(prefix)
    for path in sorted(Path(folder).glob("*.safetensors")) if folder else ():
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_PROBE_BYTES))
            file.seek(max(0, size - _PROBE_BYTES))
            digest.update(file.read(_PROBE_BYTES))
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 (hex) of a model folder's tokenizer; empty when it has no ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


async def regrade_cold(
    trajectories: Sequence[Trajectory],
    tasks: dict[str, Task],
    sandbox: SandboxConfig,
    num_in_flight: int = 4,
    progress: Progress = no_progress,
) -> dict[str, VerdictKind]:
    """Grade again, each in a fresh sandbox with a new interpreter, no cache and every gate; id -> verdict."""
    backend, grader = open_grader(sandbox, GradingConfig(is_cold=True))
    kinds: dict[str, VerdictKind] = {}
    num_confirmed = 0
    try:
        async for trajectory, verdict in grade_again(trajectories, tasks, grader, num_in_flight):
            kinds[trajectory.id] = verdict.kind
            num_confirmed += verdict.kind is VerdictKind.PASSED
            progress("regrade", len(kinds), len(trajectories), f"{num_confirmed} confirmed")
    finally:
        await backend.close()
    return {trajectory.id: kinds[trajectory.id] for trajectory in trajectories}
