"""`repairgym tasks scan`: search what agents can read for the answers of their tasks."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import TaskError
from repairgym.records import Task
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sight.scan import ScanReport, scan_tasks
from repairgym.tasks.sight.sighting import Sighting
from repairgym.tasks.store import TaskStore


def scan(
    folder: TaskFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Task ids; all when none is given.")] = None,
    has_system: Annotated[
        bool, typer.Option("--system/--no-system", help="Also search programs and libraries (minutes).")
    ] = True,
    is_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the report, for tasks curate --sightings.")] = None,
) -> None:
    """Search everything that the agents of tasks can read for gold code and hidden tests; fails when it finds any.

    Of broken builds it also seeks lost settings and facts of the release.

    Example: repairgym tasks scan tasks --out sightings.json
    """
    tasks = TaskStore(folder).load(ids=ids or ())
    report = asyncio.run(_scan(tasks, has_system))
    if out:
        out.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    if is_json:
        typer.echo(report.model_dump_json(indent=2))
    console = Console(stderr=is_json)
    for seen in report.sightings:
        place = escape(f"{seen.path}:{seen.line} shows {seen.share:.0%} of its {seen.kind}: {seen.text}")
        console.print(f"[red]answer_in_sight[/] {escape(seen.task_id)}: {place}", highlight=False)
    num_seen = len(report.reasons())
    if num_seen:
        raise TaskError(f"the answers of {num_seen} of {len(tasks)} tasks are in sight; leave these tasks out")
    console.print(f"no answer of {len(tasks)} tasks is in sight", highlight=False)


async def _scan(tasks: tuple[Task, ...], has_system: bool) -> ScanReport:
    backend, sightings = create_backend(SandboxConfig()), list[Sighting]()
    try:
        with ProgressDisplay() as progress:
            async for place, num_done, num_places, seen in scan_tasks(tasks, LayerStore(), backend, has_system):
                sightings += seen
                progress("scan", num_done, num_places, place)
    finally:
        await backend.close()
    return ScanReport(task_ids=tuple(task.id for task in tasks), sightings=tuple(sightings))
