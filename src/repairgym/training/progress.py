"""How recipes say where they are; the command line shows it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int, str], None]
"""(phase, done, total, detail); total 0 when unknown."""


def no_progress(phase: str, done: int, total: int, detail: str) -> None:
    """Reports nothing."""
