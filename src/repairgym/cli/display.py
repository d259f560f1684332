"""Progress bars and tables of commands.

A pipe gets occasional lines instead of bars. Text of a model or program is never interpreted: no markup, no control
characters.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from repairgym.errors import RepairGymError
from repairgym.rollout.calls import append_log
from repairgym.rollout.usage import TreeUsage

if TYPE_CHECKING:
    from repairgym.analysis.tables import Table, Value

_PIPE_EVERY_S = 10.0
_VIEW_EVERY_S = 2.0


class ProgressDisplay:
    """Shows progress (phase, done, total, detail). Use as a context manager."""

    def __init__(
        self,
        run_folder: Path | None = None,
        console: Console | None = None,
        is_live: bool | None = None,
        budget_s: float | None = None,
    ) -> None:
        """``run_folder``: the run to show below the bars, whose log gets the lines of a pipe.

        ``is_live``: None means live if stderr is a terminal. With a ``budget_s`` a bar over everything shows how much
        of it is spent; without, each bar of a known length has its time left.
        """
        self._console = console or Console(stderr=True)
        self._is_live = sys.stderr.isatty() if is_live is None else is_live
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            *([] if budget_s else [TextColumn("left"), TimeRemainingColumn()]),
            TextColumn("{task.fields[detail]}"),
        )
        self._budget = _Budget(budget_s) if budget_s else None
        self._usage = _UsageLine()
        self._folder = run_folder
        self._view = _RunView(run_folder) if run_folder else None
        self._live = Live(get_renderable=self._render, console=self._console)
        self._ids: dict[str, TaskID] = {}
        self._shown_at = 0.0
        self._last = ""

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()

    def __call__(self, phase: str, done: int, total: int, detail: str) -> None:
        """Show one step of progress, or a message."""
        is_message = not done and not total
        if self._is_live and not is_message:
            if phase not in self._ids:
                self._ids[phase] = self._bars.add_task(phase, total=total or None, detail="")
            self._bars.update(self._ids[phase], completed=done, total=total or None, detail=detail)
        if is_message or self._is_due(phase, done, total):
            count = "" if is_message else f" {done}/{total}" if total else f" {done}"
            line = f"{phase}{':' if is_message else count} {detail}"
            if is_message or not self._is_live:
                shown = f"{time.strftime('%H:%M:%S')} {line}"
                self._console.print(shown, markup=False, highlight=is_message, soft_wrap=True)
            if self._folder:
                append_log(self._folder, line)

    def _is_due(self, phase: str, done: int, total: int) -> bool:
        """Return True where a pipe or a log gets a line: now and then, at a new phase and at the end of one."""
        is_due = time.monotonic() - self._shown_at >= _PIPE_EVERY_S
        if not (is_due or phase != self._last or (total and done == total)):
            return False
        self._shown_at, self._last = time.monotonic(), phase
        return True

    def _render(self) -> RenderableType:
        view = self._view.render() if self._view else None
        budget = self._budget.render() if self._budget else None
        return Group(*(part for part in (budget, self._bars, view, self._usage.render()) if part is not None))


class _Budget:
    """The bar over everything: time spent of a budget, and time left."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s, self._started = budget_s, time.monotonic()

    def render(self) -> RenderableType:
        """Return the bar."""
        spent_s = time.monotonic() - self._started
        left_s = self._budget_s - spent_s
        left = f"{clock(left_s)} left" if left_s >= 0 else f"{clock(-left_s)} over the budget"
        line = RichTable.grid(padding=(0, 1))
        bar = ProgressBar(total=self._budget_s, completed=min(spent_s, self._budget_s), width=40)
        line.add_row(Text("all", style="bold"), bar, Text(f"{clock(spent_s)} of {clock(self._budget_s)}, {left}"))
        return line


class _UsageLine:
    """Processors and memory of this process and its descendants, measured every two seconds."""

    def __init__(self) -> None:
        self._usage, self._at, self._cpu_s = TreeUsage(), time.monotonic(), 0.0
        self._line: Text | None = None

    def render(self) -> RenderableType:
        """Return the line."""
        now_s = time.monotonic()
        if self._line is None or now_s - self._at >= _VIEW_EVERY_S:
            cpu_s, num_bytes = self._usage.cpu_s, self._usage.memory_bytes()
            used = max(0.0, cpu_s - self._cpu_s) / max(now_s - self._at, 1e-3)
            memory = f"{num_bytes / 2**30:.1f} of {psutil.virtual_memory().total / 2**30:.0f} GiB memory"
            num_cpus = len(os.sched_getaffinity(0))
            self._line = Text(f"{used:.1f} of {num_cpus} processors, {memory}", style="dim")
            self._at, self._cpu_s = now_s, cpu_s
        return self._line


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, or hours and minutes from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class _RunView:
    """The run's panel, read again every two seconds over its own connection."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "run.db"
        self._panel: RenderableType | None = None
        self._read_at = -_VIEW_EVERY_S

    def render(self) -> RenderableType | None:
        """Return the panel; None before there is a store."""
        if time.monotonic() - self._read_at >= _VIEW_EVERY_S and self._path.is_file():
            from repairgym.cli.watch import read_snapshot, render
            from repairgym.rollout.store import RunStore

            self._read_at = time.monotonic()
            try:
                with RunStore.open(self._path, is_read_only=True) as store:
                    self._panel = render(read_snapshot(store))
            except RepairGymError:  # the store is being created or migrated; the next read shows it
                self._panel = None
        return self._panel


_MAX_CHARS = 60
_PIPE_WIDTH = 200
_PRINTED_BELOW = ("sentence",)
"""Columns that the commands print as separate text."""


def print_table(table: Table, max_rows: int = 0) -> None:
    """Print a table, at most ``max_rows`` rows of it (0: all)."""
    from repairgym.report.safe_text import visible

    shown = table.rows[: max_rows or None]
    drawn = RichTable(title=Text(visible(table.title)), title_justify="left", header_style="bold")
    kept = [index for index, name in enumerate(table.columns) if name not in _PRINTED_BELOW]
    for index in kept:
        name = table.columns[index]
        is_number = all(isinstance(row[index], (int, float, type(None))) for row in shown)
        drawn.add_column(Text(visible(name).replace("_", " ")), justify="right" if is_number else "left")
    for row in shown:
        drawn.add_row(*(Text(visible(_text(row[index]))) for index in kept))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(drawn)
    if len(shown) < len(table.rows):
        typer.echo(f"... and {len(table.rows) - len(shown)} rows more, in the files")


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def print_results(tables: Iterable[Table], sentences: Iterable[str]) -> None:
    """Print the tables that have rows, then the sentences."""
    for table in tables:
        if table.rows:
            print_table(table)
    for sentence in sentences:
        typer.echo(sentence)


def rows_of(tables: Iterable[Table]) -> dict[str, list[dict[str, Value]]]:
    """Return title -> rows of each table, a row as column -> value."""
    return {table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables}


def time_left(started: float, num_done: int, num: int) -> str:
    """Return how long ``num - num_done`` parts take at the pace since ``started`` (monotonic)."""
    left_s = (time.monotonic() - started) / num_done * (num - num_done)
    return f"{left_s / 60:.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"
