"""The open file of the windowed editor, and how it is shown (paper B, appendix E).

Reads a file's text; makes numbered rows. Lines end at line feeds only. Invariant: a view is never beyond the file.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_ROW_CHARS = 1000


@dataclass(frozen=True)
class FileView:
    """Which lines of which file are shown."""

    path: str
    first_line: int = 1


def count_lines(text: str) -> int:
    """Lines of ``text``; what follows the last line feed is one when there is something."""
    return text.count("\n") + bool(text and not text.endswith("\n"))


def view_around(path: str, text: str, line: int, num_lines: int) -> FileView:
    """A view with ``line`` in its middle, as far as the file goes."""
    last_first = max(1, count_lines(text) - num_lines + 1)
    return FileView(path, min(max(1, line - num_lines // 2), last_first))


def scrolled(view: FileView, text: str, num_lines: int, step: int) -> FileView:
    """``view`` moved by ``step`` lines, as far as the file goes."""
    last_first = max(1, count_lines(text) - num_lines + 1)
    return FileView(view.path, min(max(1, view.first_line + step), last_first))


def render_view(view: FileView, text: str, num_lines: int) -> str:
    """The file's name and length, and the lines of the view behind their numbers."""
    num_total = count_lines(text)
    num_shown = max(0, min(num_lines, num_total - view.first_line + 1))
    shown = text.split("\n", view.first_line - 1 + num_shown)[view.first_line - 1 :][:num_shown]
    rows = [f"{number}:{_row(line)}" for number, line in enumerate(shown, view.first_line)]
    num_above, num_below = view.first_line - 1, num_total - view.first_line + 1 - num_shown
    above = [f"({num_above} more lines above)"] if num_above > 0 else []
    below = [f"({num_below} more lines below)"] if num_below > 0 else []
    return "\n".join([f"[File: {view.path} ({num_total} lines total)]", *above, *rows, *below])


def _row(line: str) -> str:
    row = line.rstrip("\r")
    return row if len(row) <= _MAX_ROW_CHARS else f"{row[:_MAX_ROW_CHARS]} [... {len(row) - _MAX_ROW_CHARS} characters]"
