"""`repairgym tasks record` and `repairgym tasks build --recipe`: a catalogue of recipes, written and rebuilt.

Reads a book of recipes or a task folder; prints what was recorded or could not be rebuilt. Invariant: no rule of a
recipe is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from repairgym.cli.progress import ProgressDisplay
from repairgym.config.tasks import RebuildConfig
from repairgym.errors import InputError, Interrupted, TaskError
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.manifest.manifest import RecipeBook
from repairgym.tasks.manifest.rebuild import RebuildProgress, rebuild_book
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore


def record(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    book: Annotated[Path, typer.Argument(help="TOML file of the book.")],
    catalogue: Annotated[
        Path | None, typer.Option("--catalogue", help="Catalogue of the packages; default: the one of the build.")
    ] = None,
) -> None:
    """Add the recipes of certified tasks to a book; those that are in it stay as they are.

    Example: repairgym tasks record tasks catalog/real.toml
    """
    store = TaskStore(folder)
    used = store.load_document(MANIFEST_FILE).get("config", {}).get("catalogue", "")
    path = catalogue or (Path(used) if used else None)
    packages = {package.name: package for package in load_catalogue(path).package}
    tasks = [task for task in store.load() if task.certificate.is_valid]
    counts = RecipeBook(book).record(tasks, packages)
    for name, count in sorted(counts.items()):
        typer.echo(f"{count} {name.replace('_', ' ')}")


def rebuild(folder: Path, book_path: Path, config: RebuildConfig) -> None:
    """Rebuild the tasks of a book into ``folder`` and say what came out.

    Raises:
        TaskError: some could not be rebuilt.
    """
    book, console = RecipeBook(book_path), Console()
    if (folder / "units").is_dir():
        raise InputError(f"{folder} holds a build from a catalogue; name a folder of its own for the tasks of a book")
    with ProgressDisplay() as progress:

        def report(done: RebuildProgress) -> None:
            progress("rebuild", done.num_done, done.num_packages, f"{done.num_tasks} tasks")
            if done.error:
                console.print(f"[yellow]{escape(done.package)}[/]: {escape(done.error)}")

        try:
            store = rebuild_book(book, folder, config, report=report)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; what was fetched is kept, run the same command again") from error
    counts = store.load_document(FUNNEL_FILE)["total"]["rebuild"]
    console.print(f"{counts['rebuilt']} of {counts['recipes']} tasks in {folder}", highlight=False)
    if counts["rebuilt"] < counts["recipes"]:
        raise TaskError(f"{counts['recipes'] - counts['rebuilt']} tasks could not be rebuilt: {folder / FUNNEL_FILE}")
