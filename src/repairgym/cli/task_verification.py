"""`repairgym tasks verify`: proves tasks again, and writes down what the runs showed.

Reads a task folder and an evidence file; prints the tasks that do not hold. Invariant: no rule of validation is here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from repairgym.cli.progress import ProgressDisplay
from repairgym.errors import Interrupted, TaskError
from repairgym.records import Task
from repairgym.tasks.build.verification import EvidenceFile, TaskEvidence, explain_failure, verify_tasks
from repairgym.tasks.store import TaskStore


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    ids: Annotated[list[str] | None, typer.Argument(help="Task ids; all when none is given.")] = None,
    num_runs: Annotated[int, typer.Option("--runs", min=1, help="Empty runs and gold runs per task.")] = 3,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 2,
    share: Annotated[
        float, typer.Option("--share", min=0, max=1, help="Only this share of the tasks, drawn by --seed.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Draws the tasks of --share.")] = 0,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="File to add each task's runs to; tasks in it are not run again.")
    ] = None,
) -> None:
    """Prove tasks again: the empty patch fails and the gold patch passes, each time, in fresh sandboxes.

    With --evidence the runs are written down for `repairgym tasks curate`, and a killed command goes on where it was.

    Example: repairgym tasks verify tasks --runs 50 --evidence evidence.jsonl

    Example: repairgym tasks verify tasks --share 0.1
    """
    tasks = _draw(TaskStore(folder).load(ids=ids or ()), share, seed)
    file = EvidenceFile(evidence) if evidence else None
    known = _enough_evidence(file.load(), tasks, num_runs) if file else {}
    failures = {task_id: explain_failure(found) for task_id, found in known.items()}
    console = Console()
    for task_id, failure in failures.items():
        _print_failure(console, task_id, failure)
    try:
        failures |= asyncio.run(_run(console, tasks, set(known), num_runs, num_concurrent, file))
    except KeyboardInterrupt as error:
        kept = "finished tasks are in the evidence file, " if file else ""
        raise Interrupted(f"interrupted; {kept}run the same command again") from error
    num_broken = sum(bool(failure) for failure in failures.values())
    if num_broken:
        raise TaskError(f"{num_broken} of {len(tasks)} tasks do not hold; build them again or leave them out")
    console.print(f"{len(tasks)} tasks hold ({num_runs} empty and {num_runs} gold runs each)", highlight=False)


def _draw(tasks: Sequence[Task], share: float, seed: int) -> Sequence[Task]:
    """``share`` of ``tasks``, at least one of them, in their order."""
    if share == 1.0:
        return tasks
    drawn = {task.id for task in random.Random(seed).sample(tasks, max(1, round(share * len(tasks))))}
    return [task for task in tasks if task.id in drawn]


async def _run(
    console: Console,
    tasks: Sequence[Task],
    known: set[str],
    num_runs: int,
    num_concurrent: int,
    file: EvidenceFile | None,
) -> dict[str, str]:
    """Task id -> why it does not hold, of the tasks that are not ``known``; each is reported when it is done."""
    left = [task for task in tasks if task.id not in known]
    failures: dict[str, str] = {}
    record = file.add if file else lambda found: None
    with ProgressDisplay() as progress:
        async for task, failure in verify_tasks(left, num_runs, num_concurrent, record=record):
            failures[task.id] = failure
            progress("verify", len(known) + len(failures), len(tasks), "")
            _print_failure(console, task.id, failure)
    return failures


def _print_failure(console: Console, task_id: str, failure: str) -> None:
    if failure:
        console.print(f"[red]broken[/] {escape(task_id)}: {escape(failure)}")


def _enough_evidence(found: dict[str, TaskEvidence], tasks: Sequence[Task], num_runs: int) -> dict[str, TaskEvidence]:
    """Evidence of these very tasks, with as many runs as are asked for."""
    digests = {task.id: task.digest() for task in tasks if task.id in found}
    return {
        task_id: found[task_id]
        for task_id, digest in digests.items()
        if found[task_id].task_digest == digest
        and min(found[task_id].num_empty_runs, found[task_id].num_gold_runs) >= num_runs
    }
