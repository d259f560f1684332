"""`repairgym tasks backtest`: paper A's experiment on pinned versions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from repairgym.cli.arguments import load_tasks, open_stored
from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder, configured
from repairgym.config.commands import BackTestConfig
from repairgym.errors import TaskError, disk_full_as_repairgym_error
from repairgym.tasks.selection import select_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repairgym.records import Task
    from repairgym.studies.backtest import BackTest


@configured
def backtest(
    folder: TaskFolder,
    out: Annotated[Path, typer.Argument(help="File to write: a JSON line for each repair.")],
    config: BackTestConfig,
    run: Annotated[
        Path | None, typer.Option(help="Run folder: its patches that passed, instead of the gold patches.")
    ] = None,
) -> None:
    """Validate stored repairs again with pinned versions and with others: the share that still works (paper A).

    Example: repairgym tasks backtest tasks backtest.jsonl select.sources=breakages

    Example: repairgym tasks backtest tasks backtest.jsonl exclude_newer=2024-01-01T00:00:00Z
    """
    from repairgym.studies.backtest import stored_repairs

    tasks = load_tasks(folder)
    selected = select_tasks(tasks.values(), config.select)
    typer.echo(selected.summary)
    repairs: Sequence[Task] = selected.tasks
    if run:
        with open_stored(run) as store:
            repairs = tuple(stored_repairs({task.id: task for task in selected.tasks}, store))
        if not repairs:
            raise TaskError(f"no episode of {run} passed one of these tasks; name another run or leave --run out")
    results = asyncio.run(_back_test(repairs, config))
    with disk_full_as_repairgym_error(out):
        out.write_text("".join(result.model_dump_json() + "\n" for result in results), encoding="utf-8")
    _print(results, out)


async def _back_test(repairs: Sequence[Task], config: BackTestConfig) -> list[BackTest]:
    from repairgym.sandbox.probe import create_backend
    from repairgym.studies.backtest import back_test
    from repairgym.tasks.layers.store import LayerStore

    backend, layers = create_backend(config.sandbox), LayerStore(config=config.layers)
    results: list[BackTest] = []
    try:
        with ProgressDisplay() as progress:
            async for result in back_test(repairs, config, backend, layers):
                results.append(result)
                progress("backtest", len(results), len(repairs), result.unpinned.outcome)
    finally:
        await backend.close()
    return results


def _print(results: Sequence[BackTest], out: Path) -> None:
    from repairgym.studies.backtest import OUTCOMES, count_outcomes

    table = Table("source", "repairs", "versions", "changed", *OUTCOMES, "kept by pins")
    for source, count in sorted(count_outcomes(results).items()):
        for versions in ("pinned", "unpinned"):
            outcomes = [str(count[f"{versions}/{outcome}"]) for outcome in OUTCOMES]
            is_other = versions == "unpinned"
            last = str(count["kept_by_pins"]) if is_other else ""
            table.add_row(source, str(count["repairs"]), versions, str(count["changed"] * is_other), *outcomes, last)
    Console().print(table)
    typer.echo(f"repairs, versions and errors: {out}")
