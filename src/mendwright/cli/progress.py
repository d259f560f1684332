"""Progress of recipes on a terminal (a live bar) or in a pipe (a line now and then)."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_PIPE_EVERY_S = 10.0


class ProgressDisplay:
    """Shows (phase, done, total, detail) as it comes. Use as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._is_live = sys.stderr.isatty()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
        )
        self._ids: dict[str, TaskID] = {}
        self._shown_at = 0.0
        self._last = ""

    def __enter__(self) -> Self:
        if self._is_live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._bars.stop()

    def __call__(self, phase: str, done: int, total: int, detail: str) -> None:
        """One step forward."""
        if self._is_live:
            if phase not in self._ids:
                self._ids[phase] = self._bars.add_task(phase, total=total or None, detail="")
            self._bars.update(self._ids[phase], completed=done, total=total or None, detail=detail)
            return
        is_due = time.monotonic() - self._shown_at >= _PIPE_EVERY_S
        if is_due or phase != self._last or (total and done == total):
            self._shown_at, self._last = time.monotonic(), phase
            count = f"{done}/{total}" if total else str(done)
            print(f"{time.strftime('%H:%M:%S')} {phase} {count} {detail}", file=sys.stderr, flush=True)
