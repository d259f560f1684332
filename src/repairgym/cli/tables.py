"""Tables on a terminal.

Reads `Table` records; prints them. Invariants: text of a model or program is shown, never interpreted (no markup, no
control characters); what is cut says so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    from repairgym.analysis.tables import Table, Value

_MAX_CHARS = 60
_PIPE_WIDTH = 200
_PRINTED_BELOW = ("sentence",)
"""Columns that the commands print as text of their own."""


def print_table(one: Table, max_rows: int = 0) -> None:
    """Print a table, at most ``max_rows`` rows of it (0: all)."""
    from repairgym.report.safe_text import visible

    shown = one.rows[: max_rows or None]
    drawn = RichTable(title=Text(visible(one.title)), title_justify="left", header_style="bold")
    kept = [index for index, name in enumerate(one.columns) if name not in _PRINTED_BELOW]
    for index in kept:
        name = one.columns[index]
        is_number = all(isinstance(row[index], (int, float, type(None))) for row in shown)
        drawn.add_column(Text(visible(name).replace("_", " ")), justify="right" if is_number else "left")
    for row in shown:
        drawn.add_row(*(Text(visible(_text(row[index]))) for index in kept))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(drawn)
    if len(shown) < len(one.rows):
        typer.echo(f"... and {len(one.rows) - len(shown)} rows more, in the files")


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
