"""The window: the part of a file that the agent sees, with short line labels.

Reads file text; makes `Window` views. Labels ``@1``, ``@2``, ... count the visible lines of the window, so that a
label is one token and an edit points at a line without copying its number from a long file. Invariant: label k means
the same file line until the next window is opened.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from repairgym.tasks.mutation.operators import docstring_of

MAX_LINES = 40
"""Lines in one window; also the number of line labels that the tokenizer knows."""


@dataclass(frozen=True)
class Window:
    """A view of a file: ``line_numbers[k - 1]`` is the 1-based file line behind label ``@k``."""

    path: str
    line_numbers: tuple[int, ...]

    def line_number(self, label: int) -> int | None:
        """File line of a label, None when the window has no such label."""
        return self.line_numbers[label - 1] if 1 <= label <= len(self.line_numbers) else None

    def label(self, line_number: int) -> int | None:
        """Label of a file line, None when it is not visible."""
        return self.line_numbers.index(line_number) + 1 if line_number in self.line_numbers else None

    def render(self, text: str) -> str:
        """Visible lines of ``text``, one per row, each behind its label."""
        lines = text.splitlines()
        shown = [(k, lines[n - 1]) for k, n in enumerate(self.line_numbers, 1) if n <= len(lines)]
        return "\n".join(render_line(k, line) for k, line in shown)


def render_line(label: int, line: str) -> str:
    """One labelled row."""
    return f"@{label}{line.rstrip()}" if line[:1] in (" ", "\t") else f"@{label} {line.rstrip()}"


def open_window(path: str, text: str, first_line: int, last_line: int | None = None) -> Window:
    """Window over ``first_line``..``last_line`` (or as many lines as fit), docstrings and blank lines folded away.

    A folded line keeps its place in the file, but takes no label. A file that does not parse keeps its docstrings.
    """
    lines = text.splitlines()
    last = min(len(lines), last_line if last_line is not None else len(lines))
    folded = docstring_lines(text)
    visible = [n for n in range(max(1, first_line), last + 1) if n not in folded and lines[n - 1].strip()]
    return Window(path, tuple(visible[:MAX_LINES]))


@lru_cache(maxsize=256)
def docstring_lines(text: str) -> frozenset[int]:
    """1-based lines of ``text`` that docstrings of functions and classes occupy; empty when it does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            docstring = docstring_of(node)
            if docstring:
                found.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return frozenset(found)
