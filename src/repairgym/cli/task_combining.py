"""`repairgym tasks combine`: tasks from failed repairs of stored episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.arguments import load_tasks, open_stored
from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.errors import InputError
from repairgym.records import Task, VerdictKind
from repairgym.tasks.sources.base import Drop, SourceResult
from repairgym.tasks.sources.failed_repairs import certified, combined_bug
from repairgym.tasks.store import TASKS_FILE, TaskStore


def combine(
    folder: TaskFolder,
    run: Annotated[Path, typer.Argument(help="Run folder with episodes on these tasks.")],
    output: Annotated[Path, typer.Argument(help="Folder for the new tasks; it must hold none.")],
    num_tasks: Annotated[int, typer.Option("--tasks", min=0, help="Most tasks; 0: all.")] = 0,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 2,
) -> None:
    """Make harder tasks of failed repairs: the bug together with what the submission broke, certified again.

    Example: repairgym tasks combine tasks runs/rl combined
    """
    if (output / TASKS_FILE).exists():
        raise InputError(f"{output} holds tasks already; name a new folder")
    tasks, result = load_tasks(folder), SourceResult()
    candidates: list[Task] = []
    for made in _failed(tasks, run, result.funnel):
        if isinstance(made, Drop):
            result.add(made)
        else:
            candidates.append(made)
    asyncio.run(_certify(candidates, result, num_tasks, num_concurrent))
    TaskStore(output).save(result.tasks, {"total": {"combined": dict(result.funnel)}}, {"run": run.name})
    for reason, count in sorted(result.funnel.items()):
        typer.echo(f"{reason.replace('_', ' '):<24}{count:>6}")
    typer.echo(f"{len(result.tasks)} tasks in {output}")


def _failed(tasks: dict[str, Task], run: Path, funnel: Counter[str]) -> Iterator[Task | Drop]:
    """Yield each different bug that a failed submission of ``run`` left."""
    seen: set[str] = set()
    with open_stored(run) as store:
        for row, document in store.documents():
            task = tasks.get(row.task_id)
            if task is None or row.verdict is not VerdictKind.FAILED:
                continue
            funnel["failed_episodes"] += 1
            made = combined_bug(task, document.final_files)
            if isinstance(made, Drop) or made.id not in seen:
                seen.add("" if isinstance(made, Drop) else made.id)
                yield made


async def _certify(candidates: list[Task], result: SourceResult, num_tasks: int, num_concurrent: int) -> None:
    from repairgym.config.sandbox import SandboxConfig
    from repairgym.sandbox.probe import create_backend
    from repairgym.tasks.build.concurrency import ordered_map
    from repairgym.tasks.layers.store import LayerStore

    store, backend = LayerStore(), create_backend(SandboxConfig())

    async def certify(task: Task) -> Task | Drop:
        return await certified(task, store, backend)

    try:
        with ProgressDisplay() as progress:
            async with aclosing(ordered_map(certify, candidates, num_concurrent)) as made:
                async for _, outcome in made:
                    result.funnel["bugs_run"] += 1
                    result.add(outcome)
                    progress("combine", result.funnel["bugs_run"], len(candidates), f"{len(result.tasks)} tasks")
                    if len(result.tasks) == num_tasks > 0:
                        break
    finally:
        await backend.close()
