"""`repairgym tasks describe`: issue texts and labels of real bugs, made again for a task folder."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.config.sandbox import SandboxConfig
from repairgym.config.tasks import Localization
from repairgym.errors import InputError
from repairgym.records import Record, Task
from repairgym.tasks.record_lines import RecordLines
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore

if TYPE_CHECKING:
    from repairgym.tasks.issues.again import Describer

_LINES_FILE = "described.jsonl"


def describe(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the described tasks; new, or of an interrupted run.")],
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
    the symptom. Other tasks lose addresses and temporary paths from their issues. An interrupted run resumes.

    Example: repairgym tasks describe tasks described

    Example: repairgym tasks describe history described --issues issues.json

    Example: repairgym tasks describe tasks symptoms --localization symptom
    """
    from repairgym.tasks.issues.again import Describer
    from repairgym.tasks.issues.commit_texts import load_issues
    from repairgym.tasks.layers.store import LayerStore

    lines = output / _LINES_FILE
    if output.exists() and (not output.is_dir() or {*output.iterdir()} - {lines}):
        raise InputError(f"{output} is not empty; name a new folder")
    store = TaskStore(folder)
    tasks = store.load()
    options = hashlib.sha256(f"{localization}:{issues and Path(issues).read_bytes()!r}".encode()).hexdigest()
    kept = RecordLines(lines, _Described, lambda line: line.key, "remove it and describe the tasks again")
    keys, known = {task.id: _key(task, options) for task in tasks}, kept.load()
    done = {task_id: known[key].task for task_id, key in keys.items() if key in known}
    describer = Describer(LayerStore(), SandboxConfig(), num_concurrent, load_issues(issues), localization, done)
    output.mkdir(parents=True, exist_ok=True)
    described = asyncio.run(
        _describe(tasks, describer, lambda task: kept.add(_Described(key=keys[task.id], task=task)))
    )
    TaskStore(output).save(described, store.load_document(FUNNEL_FILE), store.load_document(MANIFEST_FILE))
    lines.unlink(missing_ok=True)
    _print(tasks, described, output)


class _Described(Record):
    """A described task, kept until all are."""

    key: str
    """Digest of the task as it was, and of the options."""
    task: Task


def _key(task: Task, options: str) -> str:
    return hashlib.sha256(f"{task.digest()}:{options}".encode()).hexdigest()[:32]


async def _describe(tasks: tuple[Task, ...], describer: Describer, keep: Callable[[Task], None]) -> list[Task]:
    from repairgym.tasks.issues.again import describe_again

    described: list[Task] = []
    with ProgressDisplay() as progress:
        async for task in describe_again(tasks, describer):
            described.append(task)
            if task.id not in describer.described:
                keep(task)
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
