"""`repairgym tasks import`, `export` and `checkout`: tasks of other systems, tasks for them, trees for any agent."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.errors import ConfigError, InputError, Interrupted
from repairgym.tasks.checkout import checkout as write_checkout
from repairgym.tasks.formats.base import Format
from repairgym.tasks.formats.datasets import Layout
from repairgym.tasks.formats.exporting import export_dataset
from repairgym.tasks.formats.importing import REJECTED_FILE, CloneFolder, import_dataset
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

AUTO = "auto"
_NUM_SHOWN = 5


def import_tasks(
    folder: TaskFolder,
    source: Annotated[Path, typer.Argument(help="A .jsonl, .json, .parquet or .arrow file, or a folder of them.")],
    format_name: Annotated[
        str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}; {AUTO} detects it per record.")
    ] = AUTO,
    repos: Annotated[
        Path | None, typer.Option("--repos", help="Folder of local git clones to pin base files from.")
    ] = None,
) -> None:
    """Add tasks of other systems to a folder: SWE-bench and its relatives, Harbor; files, task folders, data sets.

    Records without environment layer and certificate become unbuilt tasks; `repairgym tasks show` lists the missing
    parts. Unusable records are reported with their line; the others are imported. Nothing is fetched.

    Example: repairgym tasks import tasks swe-rebench.parquet --repos clones
    """
    form = None if format_name == AUTO else _format(format_name)
    clones = CloneFolder(repos) if repos else None
    with ProgressDisplay() as progress:
        try:
            done = import_dataset(source, folder, form, clones, lambda count: progress("import", count, 0, ""))
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; the folder is as it was, run the same command again") from error
    for bad in done.bad[:_NUM_SHOWN]:
        typer.secho(f"{bad.place}: {bad.reason}", fg="yellow", err=True)
    if len(done.bad) > _NUM_SHOWN:
        typer.secho(f"and {len(done.bad) - _NUM_SHOWN} more in {folder / REJECTED_FILE}", fg="yellow", err=True)
    if done.num_records and len(done.bad) == done.num_records:
        raise InputError(
            f"none of the {done.num_records} records of {source} can be used; the first: {done.bad[0].reason}"
        )
    formats = ", ".join(f"{count} {name}" for name, count in sorted(done.formats.items())) or "none"
    typer.echo(
        f"{done.num_records} records: {done.num_imported} new tasks, {done.num_known} known, {len(done.bad)} bad"
    )
    typer.echo(f"unbuilt: {formats}; certified here before: {done.num_certified}")
    if repos:
        typer.echo(f"base files pinned: {done.num_pinned} of {done.formats.total()}")


def export_tasks(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="File or folder to write.")],
    format_name: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "swe_bench",
    layout: Annotated[
        str, typer.Option("--layout", help=f"One of {', '.join(get_args(Layout))}; {AUTO} uses the file name.")
    ] = AUTO,
) -> None:
    """Write the tasks of a folder, certified and unbuilt ones, in the format of another system.

    Certified tasks keep their whole record; `repairgym tasks import` reads them back as certified.

    Example: repairgym tasks export tasks dataset --format swe_rebench
    """
    form = _format(format_name)
    chosen = _layout(layout, form, output)
    with ProgressDisplay() as progress:
        done = export_dataset(
            TaskStore(folder), output, form, chosen, report=lambda count: progress("export", count, 0, "")
        )
    rejected = done.refused
    for task_id, reason in list(rejected.items())[:_NUM_SHOWN]:
        typer.secho(f"{task_id}: {reason}", fg="yellow", err=True)
    if not done.num_written:
        raise InputError(f"none of the {len(rejected)} tasks of {folder} can be written as {format_name}")
    typer.echo(f"{done.num_written} tasks in {output} ({format_name}, {chosen}); {len(rejected)} left out")


def checkout(
    folder: TaskFolder,
    task_id: Annotated[str, typer.Argument(help="Task id.")],
    place: Annotated[Path, typer.Argument(help="New folder for the tree.")],
) -> None:
    """Write the tree that an agent is given as a git repository with one commit, without hidden tests and repair.

    Its `git diff` is a `model_patch` for `repairgym grade`.

    Example: repairgym tasks checkout tasks acme__calc-7 calc
    """
    store = TaskStore(folder)
    unbuilt = {task.id for task in store.iter_left_unbuilt()}
    if task_id in unbuilt:
        raise InputError(f"{task_id} is not built here; repairgym tasks build {folder} --imported builds it")
    (task,) = store.load(ids=[task_id])
    commit = write_checkout(task, LayerStore(), place)
    typer.echo(f"{place}: commit {commit[:12]}; issue: repairgym tasks show {folder} {task_id}")


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ConfigError(f"got --format {name}, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _layout(name: str, form: Format, output: Path) -> Layout:
    """Return the layout ``name``, or for `AUTO` the layout for the name of ``output``."""
    by_suffix: dict[str, Layout] = {".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
    fallback: Layout = "folders" if form.is_folder else "dataset"
    layout_name = by_suffix.get(output.suffix, fallback) if name == AUTO else name
    layout = next((known for known in get_args(Layout) if known == layout_name), None)
    if layout is None:
        raise ConfigError(f"got --layout {name}, expected {AUTO} or one of {', '.join(get_args(Layout))}")
    if (layout == "folders") != form.is_folder:
        kind = "one folder per task" if form.is_folder else "rows of fields"
        raise ConfigError(f"{form.name} is {kind}, which the layout {layout} cannot hold; leave --layout out")
    chosen: Layout = layout
    return chosen
