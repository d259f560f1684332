"""Evaluation of a policy on a test set, and cold regrading of what was rewarded.

Reads tasks and a policy; makes trajectories under phase ``eval/<stage>/<test set>``. Invariants: evaluation never
trains, each task has the same number of samples, and stored episodes are not run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.config.pipeline import GradingConfig, check_undemonstrated
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import InputError
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.names import eval_phase
from repairgym.rollout.store import RunStore
from repairgym.sandbox.probe import require_isolation
from repairgym.training.audit import grade_again, open_grader
from repairgym.training.progress import Progress, no_progress
from repairgym.training.run import Run

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

    ``fingerprint`` (`policy_fingerprint`) is stored with the phase, and one that goes on must have the same.

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
    check_fingerprint(run.store, phase, fingerprint or {})
    detail = {"num_tasks": len(tasks), "num_samples": num_samples, **(fingerprint or {})}
    with run.store.phase(phase, detail):
        # The seed is that of the run, not of the stage: stages are compared on the same tasks and sample numbers.
        jobs = make_groups(phase, 0, [task.id for task in tasks], num_samples, run.seed)
        trajectories = run.run_jobs(policy, jobs, phase=phase, label=f"eval {stage} {test_set}")
    rewarded = sum(t.verdict.kind is VerdictKind.PASSED for t in trajectories)
    return rewarded / max(1, len(trajectories))


def policy_fingerprint(policy: PolicyRef, rollout: RolloutConfig) -> dict[str, str]:
    """What decides an evaluation besides its tasks: the policy, and how its episodes run and are graded."""
    scheduling = {name: RolloutConfig.model_fields[name].default for name in _SCHEDULING}
    return {
        "policy_digest": _weights_digest(policy),
        "rollout_digest": rollout.model_copy(update=scheduling).digest(),
    }


def check_fingerprint(store: RunStore, phase: str, fingerprint: Mapping[str, str]) -> None:
    """Refuse to go on with a phase that something else began.

    Raises:
        InputError: the stored fingerprint is another one.
    """
    stored = next((row.detail for row in store.phases() if row.name == phase), {})
    for key, value in fingerprint.items():
        if stored.get(key, value) != value:
            raise InputError(
                f"{phase} of {store.path} was begun with another {key.removesuffix('_digest')}; "
                "name another stage or run folder, or go on with the same one"
            )


def _weights_digest(policy: PolicyRef) -> str:
    """SHA-256 (hex) over the weights as of `weights_digest`, and the temperature."""
    digest = hashlib.sha256(f"{policy.temperature}\0{'' if policy.folder else policy.name}".encode())
    for part in _parts_of_weights(Path(policy.folder)) if policy.folder else ():
        digest.update(part)
    return digest.hexdigest()


def weights_digest(folder: Path) -> str:
    """SHA-256 (hex) over name, size, head and tail of each file of weights in a model folder."""
    digest = hashlib.sha256()
    for part in _parts_of_weights(folder):
        digest.update(part)
    return digest.hexdigest()


def _parts_of_weights(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        yield f"\0{path.name}\0{size}\0".encode()
        with path.open("rb") as file:
            yield file.read(_PROBE_BYTES)
            file.seek(max(0, size - _PROBE_BYTES))
            yield file.read(_PROBE_BYTES)


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 (hex) of a model folder's tokenizer; empty when it has no ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@dataclass(frozen=True)
class Regrade:
    """What a cold regrading found."""

    num_regraded: int
    num_confirmed: int
    refuted: tuple[str, ...]
    """Ids of trajectories whose reward does not hold."""
    invalid: tuple[str, ...]


async def regrade_cold(
    trajectories: Sequence[Trajectory],
    tasks: dict[str, Task],
    sandbox: SandboxConfig,
    num_in_flight: int = 4,
    progress: Progress = no_progress,
) -> Regrade:
    """Grade again, each in a fresh sandbox with a new interpreter, no cache and every gate."""
    backend, grader = open_grader(sandbox, GradingConfig(is_cold=True))
    found: dict[str, VerdictKind] = {}
    num_confirmed = 0
    try:
        async for trajectory, verdict in grade_again(trajectories, tasks, grader, num_in_flight):
            found[trajectory.id] = verdict.kind
            num_confirmed += verdict.kind is VerdictKind.PASSED
            progress("regrade", len(found), len(trajectories), f"{num_confirmed} confirmed")
    finally:
        await backend.close()
    pairs = [(trajectory, found[trajectory.id]) for trajectory in trajectories]
    return Regrade(
        num_regraded=len(pairs),
        num_confirmed=num_confirmed,
        refuted=tuple(t.id for t, kind in pairs if kind in (VerdictKind.FAILED, VerdictKind.EXPLOITED)),
        invalid=tuple(t.id for t, kind in pairs if kind is VerdictKind.INVALID),
    )
