"""`repairgym tasks aged`: from names of packages to certified breakages by newer dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder, configured
from repairgym.cli.still_running import StillRunning
from repairgym.config.tasks import AgedConfig
from repairgym.errors import ConfigError, Interrupted
from repairgym.tasks.store import FUNNEL_FILE

if TYPE_CHECKING:
    from repairgym.tasks.adding.aged import AgedEntry
    from repairgym.tasks.build.build_tasks import Progress
    from repairgym.tasks.store import TaskStore

CATALOGUE_FILE = "catalogue.toml"


@configured
def aged(folder: TaskFolder, config: AgedConfig) -> None:
    """Test old releases of packages with today's dependencies, and make tasks of those that older versions repair.

    Writes FOLDER/catalogue.toml and certified tasks. The same command resumes after the releases that are done.

    Example: repairgym tasks aged aged packages=flask-restful,webtest num_releases=4
    """
    if not config.packages:
        raise ConfigError("no package is named; give them as packages=NAME,NAME")
    try:
        with ProgressDisplay() as progress:
            left_out = _write_catalogue(folder / CATALOGUE_FILE, config, progress)
            store = _build(folder, config, left_out, progress)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; finished releases are kept, the same command resumes there") from error
    _print(store, left_out)


def _write_catalogue(path: Path, config: AgedConfig, progress: ProgressDisplay) -> dict[str, str]:
    """Write the entries of the packages, and return name -> reason of those that get none."""
    from repairgym.tasks.adding.aged import AgedFinder
    from repairgym.tasks.layers.atomic_write import written_whole
    from repairgym.tasks.layers.package_index import PackageIndex
    from repairgym.tasks.layers.store import LayerStore

    finder = AgedFinder(PackageIndex(), LayerStore(config=config.layers), partial(progress, "scan", 0, 0))
    entries, left_out = finder.find_all(config)
    with written_whole(path) as file:
        file.write("\n".join(entry.text(_command(entry, config)) for entry in entries).encode())
    return left_out


def _command(entry: AgedEntry, config: AgedConfig) -> str:
    return f"repairgym tasks aged FOLDER packages={entry.package.name} num_releases={config.num_releases}"


def _build(folder: Path, config: AgedConfig, left_out: dict[str, str], progress: ProgressDisplay) -> TaskStore:
    """Scan the releases of the catalogue in ``folder``; its funnel says what became of each."""
    from repairgym.tasks.build.build_tasks import build

    def report(done: Progress) -> None:
        unit = done.unit
        running.ended(unit.name)
        outcome = ", ".join(reason.replace("_", " ") for reason in _outcomes(unit.funnel)) or unit.error
        progress("releases", done.num_done, done.num_jobs, f"{done.num_tasks} tasks; {unit.name}: {outcome}")

    with StillRunning(progress) as running:
        store = build(config.as_build(folder / CATALOGUE_FILE), folder, report=report, started=running.started)
    store.save_document(FUNNEL_FILE, {**store.load_document(FUNNEL_FILE), "left_out": left_out})
    return store


def _outcomes(funnel: Mapping[str, int]) -> Counter[str]:
    """Return what became of releases -> how many."""
    counted = {"aged_releases", "search_runs"}
    return Counter({reason: count for reason, count in funnel.items() if reason not in counted})


def _print(store: TaskStore, left_out: dict[str, str]) -> None:
    """Print what became of the releases of each package, and why packages are left out."""
    funnel = store.load_document(FUNNEL_FILE)
    by_package: dict[str, Counter[str]] = {}
    for name, counts in funnel["units"].items():
        package = name.removeprefix("breakages-").rpartition("-")[0]
        by_package.setdefault(package, Counter()).update(_outcomes({k: v for k, v in counts.items() if k != "error"}))
    table = Table("package", "releases", "certified", "others")
    total: Counter[str] = Counter()
    for package, counts in sorted(by_package.items()):
        table.add_row(*_row(package, counts))
        total.update(counts)
    table.add_row(*_row(f"{len(by_package)} packages", total), style="bold")
    Console().print(table)
    for name, reason in left_out.items():
        typer.echo(f"left out: {name}: {reason}")
    typer.echo(f"the log of the first release of a reason: repairgym tasks stats {store.folder} --log REASON")


def _row(name: str, counts: Counter[str]) -> tuple[str, str, str, str]:
    others = [f"{count} {reason.replace('_', ' ')}" for reason, count in counts.most_common() if reason != "kept"]
    return name, str(counts.total()), str(counts["kept"]), ", ".join(others)
