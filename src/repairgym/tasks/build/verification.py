"""Proves stored tasks again.

Reads tasks; makes one line of reason per task that no longer holds. Invariant: every task gets its own fresh runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import TaskError
from repairgym.records import Task
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.bounded import ordered_map
from repairgym.tasks.build.build_steps import check_gold_builds
from repairgym.tasks.build.evidence import TaskEvidence, summarise_evidence
from repairgym.tasks.build.validation import gather_evidence, task_layers
from repairgym.tasks.layers.store import LayerStore


async def verify_tasks(
    tasks: Sequence[Task],
    num_runs: int = 3,
    num_concurrent: int = 2,
    config: SandboxConfig | None = None,
    layers: LayerStore | None = None,
    record: Callable[[TaskEvidence], None] = lambda evidence: None,
) -> AsyncGenerator[tuple[Task, str], None]:
    """Each task with the reason why it does not hold; the reason is empty when it does.

    ``record`` is told what the runs of each task showed.

    Raises:
        SandboxError: the sandbox could not do its work.
        IndexUnavailableError: a layer is missing and no index answers.
    """
    store, backend = layers or LayerStore(), create_backend(config or SandboxConfig())

    async def check(task: Task) -> str:
        try:
            await check_gold_builds(task, task_layers(task, store), backend)
            evidence = await gather_evidence(task, store, backend, num_runs)
        except TaskError as error:
            return str(error)
        certificate = evidence.certificate(task.fail_to_pass, task.pass_to_pass)
        short = summarise_evidence(task, evidence, certificate)
        record(short)
        return explain_failure(short)

    try:
        async with aclosing(ordered_map(check, tasks, num_concurrent)) as checked:
            async for task, failure in checked:
                yield task, failure
    finally:
        await backend.close()


def explain_failure(evidence: TaskEvidence) -> str:
    """Why a task does not hold; empty when it does."""
    if evidence.num_empty_failed == evidence.num_empty_runs and evidence.num_gold_passed == evidence.num_gold_runs:
        return ""
    return (
        f"empty patch failed {evidence.num_empty_failed}/{evidence.num_empty_runs}, gold patch passed "
        f"{evidence.num_gold_passed}/{evidence.num_gold_runs}, unstable: {list(evidence.unstable_tests)}"
    )
