"""One grading process: a sandbox back end and a grader, served over a pipe, one submission at a time.

Reads `GradeRequest` messages; sends a `GradeAnswer` for each. Invariants: what a submission makes of this process (a
syntax tree too deep, memory, an endless search) costs that submission only; it ignores Ctrl-C (the parent decides) and
ends when its pipe closes or its parent dies.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from repairgym.child_process import end_with_parent
from repairgym.config.commands import GradeCommandConfig
from repairgym.diffs.apply import ReadFile
from repairgym.diffs.parse import PatchError
from repairgym.errors import RepairGymError
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.grader import Grader
from repairgym.grading.judge import open_judge
from repairgym.grading.predictions.reading import apply_submission
from repairgym.grading.stages import read_pinned
from repairgym.records import Task, Verdict, VerdictKind
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is made from; sent once."""

    config: GradeCommandConfig
    cache_root: str | None = None


@dataclass(frozen=True)
class GradeRequest:
    """One submission."""

    task: Task
    patch: str


@dataclass(frozen=True)
class GradeAnswer:
    """The verdict on one submission, or what keeps this process from working at all."""

    verdict: Verdict | None
    is_applied: bool = True
    error: RepairGymError | None = None


def invalid(reason: str) -> GradeAnswer:
    """An answer that says nothing about the submission."""
    verdict = Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION)
    return GradeAnswer(verdict)


def worker_main(connection: Connection, setup: WorkerSetup) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        asyncio.run(_serve(connection, setup))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except RepairGymError as error:
        connection.send(GradeAnswer(None, error=error))


async def _serve(connection: Connection, setup: WorkerSetup) -> None:
    backend = create_backend(setup.config.sandbox, "evaluation")
    store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
    known: dict[str, TaskLayers] = {}

    def layers_of(task: Task) -> TaskLayers:
        if task.id not in known:
            known[task.id] = task_layers(task, store)
        return known[task.id]

    grader = Grader(
        backend,
        lambda task, files: layers_of(task).spec(files, setup.config.sandbox.limits),
        setup.config.grading,
        ExecutionCache(max_entries=0),
        open_judge(setup.config.grading.judge),
    )
    try:
        while True:
            request: GradeRequest = await asyncio.to_thread(connection.recv)
            connection.send(await _answer(request, grader, layers_of))
    finally:
        await backend.close()


async def _answer(request: GradeRequest, grader: Grader, layers_of: Callable[[Task], TaskLayers]) -> GradeAnswer:
    """The verdict; whatever goes wrong on the way is an invalid one with its reason."""
    task = request.task
    try:
        files = apply_submission(request.patch, _base_reader(task, layers_of(task).tree))
        return GradeAnswer(await grader.grade(task, files))
    except PatchError as error:
        reason = f"the submission does not apply: {error}"
        verdict = Verdict(kind=VerdictKind.FAILED, reason=reason, is_restored=False, grader_version=GRADER_VERSION)
        return GradeAnswer(verdict, is_applied=False)
    except RepairGymError as error:
        return invalid(str(error))
    except Exception as error:  # a bug of ours must not cost the other submissions their verdicts
        return invalid(f"the grader broke: {type(error).__name__}: {error}")


def _base_reader(task: Task, tree: Path) -> ReadFile:
    """Reads the tree that the agent was given."""

    def read(path: str) -> str | None:
        return task.base_files[path] if path in task.base_files else read_pinned(tree, path)

    return read
