"""`repairgym tasks describe`: issue texts and labels of real bugs, made again for a task folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.config.tasks import Localization
from repairgym.errors import InputError
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore

if TYPE_CHECKING:
    from repairgym.records import Task
    from repairgym.tasks.issues.again import Describer


def describe(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the described tasks; it must be empty.")],
    issues: Annotated[
        str, typer.Option("--issues", help="JSON file of a repository's issues, for history tasks.")
    ] = "",
    localization: Annotated[
        Localization | None, typer.Option("--localization", help="Place that issues of synthetic bugs tell.")
    ] = None,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 2,
) -> None:
    """Write issue texts and labels of real bugs again, as a build of this version would.

    Releases get the changelog entries assigned jointly, commits their issue, entry or message; the specification check
    adds a test or a statement of behaviour where hidden tests need what nobody tells, or labels the task. The broken
    code of each task runs once. With --localization, issues of synthetic bugs tell the function, only its file, or only
    the symptom. Other tasks lose addresses and temporary paths from their issues.

    Example: repairgym tasks describe tasks described

    Example: repairgym tasks describe history described --issues issues.json

    Example: repairgym tasks describe tasks symptoms --localization symptom
    """
    from repairgym.tasks.issues.again import Describer
    from repairgym.tasks.issues.commit_texts import load_issues
    from repairgym.tasks.layers.store import LayerStore

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not empty; name a new folder")
    store = TaskStore(folder)
    tasks = store.load()
    describer = Describer(
        LayerStore(), num_concurrent=num_concurrent, issues=load_issues(issues), localization=localization
    )
    described = asyncio.run(_describe(tasks, describer))
    TaskStore(output).save(described, store.load_document(FUNNEL_FILE), store.load_document(MANIFEST_FILE))
    _print(tasks, described, output)


async def _describe(tasks: tuple[Task, ...], describer: Describer) -> list[Task]:
    from repairgym.tasks.issues.again import describe_again

    described: list[Task] = []
    with ProgressDisplay() as progress:
        async for task in describe_again(tasks, describer):
            described.append(task)
            progress("describe", len(described), len(tasks), task.id)
    return described


def _print(before: tuple[Task, ...], after: list[Task], output: Path) -> None:
    known = {task.id: task for task in before}
    real = [task for task in after if "kind" in task.labels]
    num_changed = sum(task != known[task.id] for task in after)
    typer.echo(f"{num_changed} of {len(after)} tasks changed, {len(real)} of them real bugs; {output}")
    for label in ("issue_source", "kind", "is_underspecified"):
        counts = Counter(task.labels.get(label, "false") for task in real)
        typer.echo(f"{label:<18}" + ", ".join(f"{value} {count}" for value, count in counts.most_common()))
