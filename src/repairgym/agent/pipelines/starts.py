"""Starts of paper A's episodes: the main error of a task's first build and the past fixes that fit it, ranked.

Reads the state of a task and the knowledge base; makes `Start` records and files of them (paper A's simplified pipeline
caches repositories, logs and retrieved fixes, so that every episode of a task starts alike). Guarantees: a start holds
no fix of its own task; a file has one line per task and is written whole or not at all.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from repairgym.agent.tools.check import build_and_test
from repairgym.agent.tools.knowledge import Fix, KnowledgeBase
from repairgym.agent.tools.workspace import Workspace
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.records import MainError, Record, Task
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.logs.main_error import MAX_MESSAGE_CHARS, classify


class Start(Record):
    """The cached (task, error, candidate fix) of paper A."""

    task_id: str
    error: MainError
    log: str = ""
    fixes: tuple[Fix, ...] = ()
    """Candidates, the best first."""


async def find_start(
    task: Task, workspace: Workspace, cache: ExecutionCache, knowledge: KnowledgeBase | None, num_fixes: int
) -> Start:
    """Build ``task`` as it is, pick the main error, retrieve and rank past fixes.

    Where the visible tests pass before the repair, the report is the error.

    Raises:
        SandboxError: the sandbox could not do its work.
        KnowledgeUnavailableError: the knowledge base stays locked.
    """
    outcome = await build_and_test(task, workspace, cache)
    error = outcome.error or reported_error(task)
    fixes = await find_fixes(task, error, knowledge, num_fixes)
    return Start(task_id=task.id, error=error, log=outcome.log if outcome.error else "", fixes=fixes)


def reported_error(task: Task) -> MainError:
    """Return the error of a task as its report states it."""
    line = next((line.strip() for line in task.issue.splitlines() if line.strip()), "")
    return MainError(error_class=classify(line), message=line[:MAX_MESSAGE_CHARS])


async def find_fixes(task: Task, error: MainError, knowledge: KnowledgeBase | None, num_fixes: int) -> tuple[Fix, ...]:
    """Return past fixes of errors like ``error``, the best first.

    Raises:
        TaskError: the knowledge base holds fixes of the package of a task that is no training task.
        KnowledgeUnavailableError: the knowledge base stays locked.
    """
    if knowledge is None:
        return ()
    # In a thread: a locked file makes SQLite wait.
    ranked = await asyncio.to_thread(knowledge.search, error.message, task, limit=num_fixes)
    return tuple(hit.fix for hit in ranked)


# --- files ---------------------------------------------------------------------------------------------------------


def save_starts(path: Path, starts: Iterable[Start]) -> None:
    """Write ``starts``, one per line.

    Raises:
        DiskFullError: no room; the old file is intact.
    """
    with disk_full_as_repairgym_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text("".join(start.model_dump_json() + "\n" for start in starts), encoding="utf-8")
        temporary.replace(path)


def load_starts(path: Path) -> dict[str, Start]:
    """Return the starts by task id.

    Raises:
        InputError: the file cannot be read, or a line is broken.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = [Start.model_validate_json(line) for line in lines]
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is no file of starts ({error}); make one with: repairgym knowledge starts") from error
    return {start.task_id: start for start in starts}
