"""`repairgym tasks` build, lock and record; the other commands of the group are in `task_*` modules.

Reads options; prints results of the layers below. Guarantee: holds no task logic.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import Config, DryRun, Overrides, Preset, resolve
from repairgym.cli.task_exchange import export_tasks, import_tasks
from repairgym.cli.task_selection import curate_tasks, expose_tasks, verify
from repairgym.cli.task_views import show, stats
from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.errors import InputError, Interrupted, TaskError
from repairgym.records import Task
from repairgym.tasks.build import build_tasks as building
from repairgym.tasks.build.build_tasks import build as build_tasks
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.environments import lock_name, resolve_lock, shipped_locks_folder
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import RebuildProgress, rebuild_manifest
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore

app = typer.Typer(
    help="Build, verify, exchange, curate and show validated repair tasks.", no_args_is_help=True, add_completion=False
)

app.command("import")(import_tasks)
app.command("export")(export_tasks)
app.command("curate")(curate_tasks)
app.command("expose")(expose_tasks)
app.command()(verify)
app.command()(show)
app.command()(stats)


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="Rebuild the certified tasks of this task manifest.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Make validated tasks from the catalogue's packages and repositories; an interrupted build resumes.

    Example: repairgym tasks build tasks limits.train=100 packages=boltons,click

    Example: repairgym tasks build tasks sources=history catalogue=repositories.toml

    Example: repairgym tasks build tasks --manifest catalog/real.toml packages=boltons
    """
    if manifest:
        rebuild(folder, manifest, resolve(RebuildConfig, overrides, config, preset, dry_run))
        return
    resolved = resolve(TasksConfig, overrides, config, preset, dry_run)
    console = Console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        shown = bar.add_task("building", total=None)

        def report(progress: building.Progress) -> None:
            line = f"{progress.num_tasks} tasks"
            bar.update(shown, completed=progress.num_done, total=progress.num_jobs, description=line)
            unit = progress.unit
            if unit.error:
                console.print(f"[yellow]{escape(unit.name)}[/]: {escape(unit.error)}")
            elif not console.is_terminal:
                console.print(f"{unit.name}: {len(unit.tasks)} tasks", highlight=False)

        try:
            store = build_tasks(resolved, folder, report=report)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; finished packages are kept, the same command resumes there") from error
    _print_summary(console, store.load(), folder)


def _print_summary(console: Console, tasks: tuple[Task, ...], folder: Path) -> None:
    counts: dict[tuple[str, str], int] = {}
    for task in tasks:
        counts[task.split, task.source] = counts.get((task.split, task.source), 0) + 1
    for (split, source), count in sorted(counts.items()):
        console.print(f"{split:<12}{source:<12}{count:>6}", highlight=False)
    console.print(f"{len(tasks)} tasks in {folder}; reasons for the others: {folder / 'funnel.json'}", highlight=False)


@app.command()
def lock(
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the locks; default: the package's.")
    ] = None,
    exclude_newer: Annotated[str, typer.Option("--exclude-newer", help="RFC 3339 time: ignore later uploads.")] = "",
    catalogue: Annotated[Path | None, typer.Option("--catalogue", help="Another catalogue file.")] = None,
) -> None:
    """Resolve the locks of the catalogue's test environments again (for maintainers).

    Example: repairgym tasks lock --exclude-newer 2026-06-01T00:00:00Z
    """
    folder = output or shipped_locks_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for requirements in (*load_catalogue(catalogue).requirement_sets(), BUILD_REQUIREMENTS):
        path = folder / lock_name(requirements)
        path.write_text(resolve_lock(requirements, exclude_newer), encoding="utf-8")
        typer.echo(path)


@app.command()
def record(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    manifest: Annotated[Path, typer.Argument(help="TOML file of the task manifest.")],
    catalogue: Annotated[
        Path | None, typer.Option("--catalogue", help="Catalogue of the packages; default: that of the build.")
    ] = None,
) -> None:
    """Add certified tasks to a task manifest; existing entries stay as they are.

    Example: repairgym tasks record tasks catalog/real.toml
    """
    store = TaskStore(folder)
    used = store.load_document(MANIFEST_FILE).get("config", {}).get("catalogue", "")
    path = catalogue or (Path(used) if used else None)
    packages = {package.name: package for package in load_catalogue(path).package}
    tasks = [task for task in store.load() if task.certificate.is_valid]
    counts = TaskManifest(manifest).add(tasks, packages)
    for name, count in sorted(counts.items()):
        typer.echo(f"{count} {name.replace('_', ' ')}")


def rebuild(folder: Path, manifest_path: Path, config: RebuildConfig) -> None:
    """Rebuild the tasks of a manifest into ``folder`` and print the outcome.

    Raises:
        TaskError: some tasks could not be rebuilt.
    """
    manifest, console = TaskManifest(manifest_path), Console()
    if (folder / "units").is_dir():
        raise InputError(f"{folder} holds a build from a catalogue; name another folder for the tasks of a manifest")
    with ProgressDisplay() as progress:

        def report(done: RebuildProgress) -> None:
            progress("rebuild", done.num_done, done.num_packages, f"{done.num_tasks} tasks")
            if done.error:
                console.print(f"[yellow]{escape(done.package)}[/]: {escape(done.error)}")

        try:
            store = rebuild_manifest(manifest, folder, config, report=report)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; what was fetched is kept, run the same command again") from error
    counts = store.load_document(FUNNEL_FILE)["total"]["rebuild"]
    console.print(f"{counts['rebuilt']} of {counts['entries']} tasks in {folder}", highlight=False)
    if counts["rebuilt"] < counts["entries"]:
        raise TaskError(f"{counts['entries'] - counts['rebuilt']} tasks could not be rebuilt: {folder / FUNNEL_FILE}")
