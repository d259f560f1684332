"""`repairgym knowledge`: fill and query the knowledge base of past fixes; compute paper A's start states."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from repairgym.cli.arguments import load_tasks, open_stored
from repairgym.cli.options import Tasks, configured
from repairgym.cli.preflights import show_selection
from repairgym.config.commands import StartsConfig
from repairgym.errors import InputError

if TYPE_CHECKING:
    from repairgym.agent.pipelines.paper_a import Start
    from repairgym.records import Task

app = typer.Typer(help="Fill and query the knowledge base of past fixes.", no_args_is_help=True, add_completion=False)

KnowledgeFile = Annotated[Path, typer.Argument(help="File of the knowledge base.")]


@app.command()
def add(
    knowledge: KnowledgeFile,
    run: Annotated[Path, typer.Argument(help="Run folder whose passed trajectories are added.")],
    tasks: Annotated[Path, typer.Option(help="Folder of the run's tasks (repairgym tasks build).")],
    starts: Annotated[
        Path | None, typer.Option(help="File of repairgym knowledge starts: the errors of the tasks.")
    ] = None,
    catalogue: Annotated[Path | None, typer.Option(help="Catalogue of the tasks; default: the shipped one.")] = None,
    guard: Annotated[
        Literal["package", "time"] | None,
        typer.Option(help="Of a new file (default: package). time: tasks are offered fixes of older tasks only."),
    ] = None,
) -> None:
    """Add the fixes of a run and the outcomes of the fixes offered in it; makes the file when it is missing.

    Only training tasks count. By default packages of validation and test tasks are left out.

    Example: repairgym knowledge add fixes.db runs/teacher --tasks tasks
    """
    from repairgym.agent.pipelines.paper_a import load_starts
    from repairgym.agent.tools.knowledge import KnowledgeBase
    from repairgym.studies.knowledge import add_run

    known = load_tasks(tasks)
    errors = load_starts(starts) if starts else {}
    with (
        open_stored(run) as store,
        KnowledgeBase.open(knowledge, is_read_only=False)
        if knowledge.exists()
        else KnowledgeBase.create(knowledge, guard or "package") as opened,
    ):
        if guard not in (None, opened.guard()):
            raise InputError(f"{knowledge} is guarded by {opened.guard()}; name another file for --guard {guard}")
        counts = add_run(opened, store, known, errors, catalogue)
        num_fixes = sum(opened.packages().values())
    summary = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items()) if count)
    typer.echo(f"{knowledge}: {num_fixes} fixes; of this run {summary or 'nothing'}")


@app.command()
def search(
    knowledge: KnowledgeFile,
    text: Annotated[str, typer.Argument(help="Words of an error.")],
    limit: Annotated[int, typer.Option(min=1, help="Fixes shown.")] = 3,
) -> None:
    """Show the past fixes of similar errors, the best first, with their scores.

    Example: repairgym knowledge search fixes.db "no matching distribution found for setuptools>=999"
    """
    from repairgym.agent.tools.knowledge import KnowledgeBase, describe_fix

    with KnowledgeBase.open(knowledge) as opened:
        matches = opened.search(text, limit=limit)
    for match in matches:
        rate = f"{match.num_solved} of {match.num_offers} episodes that were offered it passed"
        typer.echo(f"# score {match.score:.2f}: relevance {match.relevance:.2f}, {rate}")
        typer.echo(describe_fix(match.fix) + "\n")
    if not matches:
        typer.echo("no past fix has these words")


@app.command()
def show(knowledge: KnowledgeFile) -> None:
    """Count the fixes by package and list the held-out packages.

    Example: repairgym knowledge show fixes.db
    """
    from repairgym.agent.tools.knowledge import KnowledgeBase

    with KnowledgeBase.open(knowledge) as opened:
        for package, count in opened.packages().items():
            typer.echo(f"{package}\t{count}")
        typer.echo(f"guarded by {opened.guard()}; held out: {', '.join(sorted(opened.held_out())) or 'nothing'}")


@app.command()
@partial(configured, check_dry=show_selection)
def starts(
    tasks: Tasks,
    out: Annotated[Path, typer.Argument(help="File to write.")],
    config: StartsConfig,
    knowledge: Annotated[Path | None, typer.Option(help="Knowledge base for the candidate fixes.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Folder for the tasks, one for each error of a build instead of its main error.")
    ] = None,
) -> None:
    """Build every task as it is and write its main error and candidate fixes (paper A's cached tuples).

    With --samples a task whose build has several errors becomes several tasks, which start at one error each.

    Example: repairgym knowledge starts tasks starts.jsonl --knowledge fixes.db

    Example: repairgym knowledge starts tasks starts.jsonl --samples samples select.sources=breakages
    """
    from repairgym.agent.pipelines.paper_a import save_starts
    from repairgym.agent.tools.knowledge import SAMPLE_LABEL
    from repairgym.tasks.store import TASKS_FILE, TaskStore

    if samples and (samples / TASKS_FILE).exists():
        raise InputError(f"{samples} holds tasks already; name a new folder")
    started = asyncio.run(_find_starts(config, tasks, knowledge, is_split=samples is not None))
    save_starts(out, (start for _, start in started))
    num_fixed = sum(bool(start.fixes) for _, start in started)
    typer.echo(f"{out}: {len(started)} starts, {num_fixed} with a past fix")
    if samples:
        TaskStore(samples).save((task for task, _ in started), {}, {})
        num_split = sum(SAMPLE_LABEL in task.labels for task, _ in started)
        typer.echo(f"{samples}: {len(started)} tasks of {len(started) - num_split}, {num_split} for further errors")


async def _find_starts(
    config: StartsConfig, tasks: Path, path: Path | None, *, is_split: bool
) -> list[tuple[Task, Start]]:
    from repairgym.agent.tools.knowledge import KnowledgeBase
    from repairgym.cli.display import ProgressDisplay
    from repairgym.sandbox.probe import create_backend
    from repairgym.studies.knowledge import find_starts
    from repairgym.tasks.build.validation import task_layers
    from repairgym.tasks.layers.store import LayerStore
    from repairgym.tasks.selection import select_tasks

    selected = select_tasks(load_tasks(tasks).values(), config.select)
    typer.echo(selected.summary, err=True)
    knowledge = KnowledgeBase.open(path) if path else None
    layers = LayerStore(config=config.layers)
    backend = create_backend(config.sandbox)
    try:
        with ProgressDisplay() as progress:
            return await find_starts(
                selected.tasks,
                config,
                lambda task: task_layers(task, layers),
                backend,
                knowledge,
                progress,
                is_split=is_split,
            )
    finally:
        await backend.close()
