"""Verification: certify stored tasks again, and the evidence file of their runs.

Reads tasks. Makes a reason per task that no longer holds, and `TaskEvidence` records, one line each. Guarantees: every
task gets its own fresh runs; the digest names the state of the task.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import TaskError
from repairgym.records import Certificate, Record, Task, TestOutcome
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.build_steps import check_gold_builds
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.validation import Evidence, gather_evidence, task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.record_lines import RecordLines


class TaskEvidence(Record):
    """Summary of one task's runs."""

    task_id: str
    task_digest: str
    num_empty_runs: int
    num_empty_failed: int
    num_gold_runs: int
    num_gold_passed: int
    unstable_tests: tuple[str, ...]
    empty_duration_s: float
    """Mean over the empty runs: the time of a first build with its tests."""
    gold_duration_s: float
    failures: dict[str, str]
    """Failing test -> first line of its failure in the first empty run."""


def summarize_evidence(task: Task, evidence: Evidence, certificate: Certificate) -> TaskEvidence:
    """Summarize ``evidence``, from which ``certificate`` of ``task`` was made."""
    first = evidence.empty[0]
    is_failure = (TestOutcome.FAILED, TestOutcome.ERROR)
    return TaskEvidence(
        task_id=task.id,
        task_digest=task.digest(),
        **certificate.model_dump(exclude={"tool_versions", "replay", "accuracy"}),
        failures={i: first.results[i].message for i in task.fail_to_pass if first.outcome(i) in is_failure},
    )


def evidence_lines(path: Path) -> RecordLines[TaskEvidence]:
    """Return the evidence in a file, by task id."""
    return RecordLines(path, TaskEvidence, lambda evidence: evidence.task_id, "verify the tasks again")


async def verify_tasks(
    tasks: Sequence[Task],
    num_runs: int = 3,
    num_concurrent: int = 2,
    config: SandboxConfig | None = None,
    layers: LayerStore | None = None,
    record: Callable[[TaskEvidence], None] = lambda evidence: None,
) -> AsyncGenerator[tuple[Task, str], None]:
    """Yield each task with the reason of its failure, empty for none; ``record`` gets the evidence of each task.

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
        short = summarize_evidence(task, evidence, certificate)
        record(short)
        return explain_failure(short)

    try:
        async with aclosing(ordered_map(check, tasks, num_concurrent)) as checked:
            async for task, failure in checked:
                yield task, failure
    finally:
        await backend.close()


def explain_failure(evidence: TaskEvidence) -> str:
    """Return the reason of a failed verification; empty for none."""
    if evidence.num_empty_failed == evidence.num_empty_runs and evidence.num_gold_passed == evidence.num_gold_runs:
        return ""
    return (
        f"empty patch failed {evidence.num_empty_failed}/{evidence.num_empty_runs}, gold patch passed "
        f"{evidence.num_gold_passed}/{evidence.num_gold_runs}, unstable: {list(evidence.unstable_tests)}"
    )
