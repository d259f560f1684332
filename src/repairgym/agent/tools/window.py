"""Views of files: the window of the compact tools with line labels, and the numbered view of the windowed editor.

Reads the text of a file; makes rows. The labels ``@1``, ``@2``, ... count the visible lines of a `Window`, so that a
label is one token and an edit points at a line without copying its number from a long file; label k means the same line
of text until the next window is opened: an inserted line takes the next free label, a deleted one leaves a gap. Lines
are those that Python and its tracebacks count (`source_lines`). A
`FileView` (paper B, appendix E) shows file lines behind their numbers; its lines end at line feeds only, and it is
never beyond the file.
"""

import ast
from dataclasses import dataclass
from functools import lru_cache

from repairgym.diffs.lines import source_lines
from repairgym.tasks.mutation.operators import docstring_of

MAX_LINES = 40
"""Lines in one window; also the number of line labels that the tokenizer knows."""


@dataclass(frozen=True)
class Window:
    """A view of a file: ``line_numbers[k - 1]`` is the 1-based file line behind label ``@k``, 0 of a deleted line."""

    path: str
    line_numbers: tuple[int, ...]

    def line_number(self, label: int) -> int | None:
        """Return the file line of a label, None when the window has no such label (any more)."""
        return (self.line_numbers[label - 1] or None) if 1 <= label <= len(self.line_numbers) else None

    def label(self, line_number: int) -> int | None:
        """Return the label of a file line, None when it is not visible."""
        return self.line_numbers.index(line_number) + 1 if line_number in self.line_numbers else None

    def labels(self) -> list[tuple[int, int]]:
        """Return (label, file line) of the lines that are there, by label."""
        return [(label, number) for label, number in enumerate(self.line_numbers, 1) if number]

    def after_insertion(self, line_number: int) -> "Window":
        """Return the window when a new line ``line_number`` came into the file; it has the next free label."""
        moved = (number + (number >= line_number) for number in self.line_numbers)
        return Window(self.path, (*moved, line_number))

    def after_deletion(self, line_number: int) -> "Window":
        """Return the window when line ``line_number`` went; its label is gone."""
        kept = (0 if number == line_number else number - (number > line_number) for number in self.line_numbers)
        return Window(self.path, tuple(kept))

    def render(self, text: str) -> str:
        """Return the visible lines of ``text`` in the file's order, one per row, each behind its label."""
        lines = source_lines(text)
        shown = sorted((number, label) for label, number in self.labels() if number <= len(lines))
        return "\n".join(render_line(label, lines[number - 1]) for number, label in shown)


def render_line(label: int, line: str) -> str:
    """Return one labeled row."""
    return f"@{label}{line.rstrip()}" if line[:1] in (" ", "\t") else f"@{label} {line.rstrip()}"


def open_window(path: str, text: str, first_line: int, last_line: int | None = None) -> Window:
    """Open a window over ``first_line``..``last_line`` (or the lines that fit); docstrings and blank lines are folded.

    A folded line keeps its place in the file, but takes no label. A file that does not parse keeps its docstrings.
    """
    lines = source_lines(text)
    last = min(len(lines), last_line if last_line is not None else len(lines))
    folded = docstring_lines(text)
    visible = [n for n in range(max(1, first_line), last + 1) if n not in folded and lines[n - 1].strip()]
    return Window(path, tuple(visible[:MAX_LINES]))


@lru_cache(maxsize=256)
def docstring_lines(text: str) -> frozenset[int]:
    """Return the lines (from 1) of docstrings of functions and classes; empty when ``text`` does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if docstring := docstring_of(node):
            numbers.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return frozenset(numbers)


# --- the numbered view ---------------------------------------------------------------------------------------------

_MAX_ROW_CHARS = 1000


@dataclass(frozen=True)
class FileView:
    """The shown part of a file."""

    path: str
    first_line: int = 1


def count_lines(text: str) -> int:
    """Count the lines of ``text``; text behind the last line feed is a line."""
    return text.count("\n") + bool(text and not text.endswith("\n"))


def view_around(path: str, text: str, line: int, num_lines: int) -> FileView:
    """Return a view with ``line`` in its middle, as far as the file goes."""
    return view_from(path, text, line - num_lines // 2, num_lines)


def view_from(path: str, text: str, first_line: int, num_lines: int) -> FileView:
    """Return a view that begins at ``first_line``, as far as the file goes."""
    return FileView(path, min(max(1, first_line), max(1, count_lines(text) - num_lines + 1)))


def render_view(view: FileView, text: str, num_lines: int) -> str:
    """Return the file's name and length, and the lines of the view behind their numbers."""
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
