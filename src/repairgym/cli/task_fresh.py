"""`repairgym tasks fresh`: tasks of the newest releases, held out by date for evaluation."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder, configured
from repairgym.cli.still_running import StillRunning
from repairgym.config.tasks import FreshConfig
from repairgym.errors import Interrupted

if TYPE_CHECKING:
    from repairgym.tasks.adding.fresh import FreshPackage
    from repairgym.tasks.build.build_tasks import Progress

CATALOGUE_FILE, LOCKS_FOLDER = "catalogue.toml", "locks"


@configured
def fresh(
    folder: TaskFolder,
    config: FreshConfig,
    days: Annotated[int, typer.Option("--days", min=1, help="Releases of the last so many days.")] = 30,
) -> None:
    """Make tasks of the fixes in releases of the last days, in the split test, dated by their upload.

    Writes FOLDER/catalogue.toml, FOLDER/locks and certified tasks. The same command resumes.

    Example: repairgym tasks fresh fresh --days 30

    Example: repairgym tasks fresh fresh --days 90 catalogue=mine.toml packages=schema until=2026-11-01
    """
    last = datetime.combine(datetime.fromisoformat(config.until), time.max, UTC) if config.until else datetime.now(UTC)
    first = last - timedelta(days=days)
    try:
        with ProgressDisplay() as progress:
            fresh_packages, left_out = _find(folder, config, (first, last), progress)
            num_tasks = _build(folder, config, fresh_packages, progress) if fresh_packages else 0
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; finished pairs are kept, the same command resumes there") from error
    for name, reason in left_out.items():
        typer.echo(f"left out: {name}: {reason}")
    num_pairs = sum(len(fresh_package.uploaded) for fresh_package in fresh_packages)
    span = f"from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    typer.echo(f"{num_pairs} pairs of {len(fresh_packages)} packages {span}: {num_tasks} tasks in {folder}")


def _find(
    folder: Path, config: FreshConfig, span: tuple[datetime, datetime], progress: ProgressDisplay
) -> tuple[list[FreshPackage], dict[str, str]]:
    """Write catalogue and locks of the fresh pairs; return these, and name -> reason of packages that are left out."""
    from repairgym.tasks.adding.fresh import FreshFinder
    from repairgym.tasks.layers.atomic_write import written_whole
    from repairgym.tasks.layers.catalogue import load_catalogue
    from repairgym.tasks.layers.environments import kept_or_resolved_lock
    from repairgym.tasks.layers.package_index import PackageIndex
    from repairgym.tasks.layers.store import LayerStore

    packages = load_catalogue(Path(config.catalogue)).select(config.packages)
    say, resolve = partial(progress, "fresh", 0, 0), partial(kept_or_resolved_lock, folder / LOCKS_FOLDER)
    finder = FreshFinder(PackageIndex(), LayerStore(config=config.layers), *span, say, resolve)
    fresh_packages, left_out = finder.find_all(packages)
    for fresh_package in fresh_packages:
        fresh_package.write_lock(folder / LOCKS_FOLDER)
    if fresh_packages:
        with written_whole(folder / CATALOGUE_FILE) as file:
            file.write(
                "\n".join(fresh_package.text("repairgym tasks fresh") for fresh_package in fresh_packages).encode()
            )
    return fresh_packages, left_out


def _build(folder: Path, config: FreshConfig, fresh_packages: list[FreshPackage], progress: ProgressDisplay) -> int:
    """Build and date the tasks of the fresh pairs; return their number."""
    from repairgym.tasks.adding.fresh import dated
    from repairgym.tasks.build.build_tasks import build

    def report(done: Progress) -> None:
        running.ended(done.unit.name)
        progress("pairs", done.num_done, done.num_jobs, f"{done.num_tasks} tasks; {done.unit.name} {done.unit.error}")

    build_config = config.as_build(folder / CATALOGUE_FILE, folder / LOCKS_FOLDER)
    with StillRunning(progress) as running:
        store = build(build_config, folder, report=report, started=running.started)
    store.replace(dated(store.load(), fresh_packages))
    return len(store.load())
