"""`repairgym watch`: look at a run that another process is working on, or that has ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from repairgym.cli.run_view import Snapshot


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder; it holds run.db.")],
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 2.0,
    is_once: Annotated[bool, typer.Option("--once", help="Show it once and leave.")] = False,
) -> None:
    """Show phases, iterations and alarms of a run until it ends; changes nothing, Ctrl-C leaves the run alone.

    Example: repairgym watch runs/demo-20260101-120000
    """
    from rich.console import Console
    from rich.live import Live

    from repairgym.cli.run_view import read_snapshot, render
    from repairgym.rollout.store import RunStore
    from repairgym.training.run import is_locked

    with RunStore.open(run / "run.db", is_read_only=True) as store:
        if is_once:
            Console().print(render(read_snapshot(store)))
        elif sys.stdout.isatty():
            with Live(render(read_snapshot(store)), auto_refresh=False) as live:
                while is_locked(run):
                    time.sleep(every_s)
                    live.update(render(read_snapshot(store)), refresh=True)
        else:
            lines = _Lines()
            lines.show(read_snapshot(store))
            while is_locked(run):
                time.sleep(every_s)
                lines.show(read_snapshot(store))
    if not is_once:
        typer.echo(f"no process works on {run}", err=True)


class _Lines:
    """Prints what is new, for a pipe."""

    def __init__(self) -> None:
        self._num_iterations = 0
        self._num_alarms = 0

    def show(self, snapshot: Snapshot) -> None:
        """Lines for iterations and alarms that were not shown yet."""
        from repairgym.cli.run_view import iteration_line

        for iteration in snapshot.iterations[self._num_iterations :]:
            typer.echo(iteration_line(snapshot, iteration))
        for event in snapshot.alarms[self._num_alarms :]:
            typer.echo(f"alarm: {event.message}")
        self._num_iterations, self._num_alarms = len(snapshot.iterations), len(snapshot.alarms)
