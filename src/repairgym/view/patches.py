"""A unified diff as numbered rows, with what exploit detectors found at the lines where they found it.

Reads patch text, findings and the submitted files; makes rows for a template. Invariants: each finding is shown once,
at its line when the diff shows that line, else beside an extract of the file; any text is taken, a diff or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from repairgym.records import Finding

MAX_ROWS = 1_500
MAX_LINE_CHARS = 2_000
_CONTEXT_LINES = 3
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

RowKind = Literal["file", "hunk", "add", "del", "same", "note"]
_KINDS: dict[str, RowKind] = {"+": "add", "-": "del", " ": "same", "": "same"}


@dataclass(frozen=True)
class DiffRow:
    """One line of a diff. ``findings`` are what detectors saw on it."""

    kind: RowKind
    text: str
    old_number: int | None = None
    new_number: int | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Extract:
    """A finding that no row of the diff shows, with the lines around its place where the submission has them."""

    finding: Finding
    lines: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Diff:
    """A diff ready to show."""

    rows: tuple[DiffRow, ...]
    extracts: tuple[Extract, ...] = ()
    num_left_out: int = 0
    num_added: int = 0
    num_removed: int = 0


def read_diff(patch: str, findings: Sequence[Finding] = (), files: Mapping[str, str | None] | None = None) -> Diff:
    """Rows of ``patch``; ``files`` are the submitted files that extracts are taken from."""
    rows = list(_rows(patch.removesuffix("\n").split("\n") if patch else []))
    waiting = list(findings)
    shown = tuple(_with_findings(row, path, waiting) for path, row in rows[:MAX_ROWS])
    return Diff(
        rows=shown,
        extracts=tuple(_extract(finding, files or {}) for finding in waiting),
        num_left_out=len(rows) - len(shown),
        num_added=sum(row.kind == "add" for _, row in rows),
        num_removed=sum(row.kind == "del" for _, row in rows),
    )


def _rows(lines: Sequence[str]) -> Iterator[tuple[str, DiffRow]]:
    """(path of the new file, row) of each line; the two lines that name a file become one row.

    What a line is follows from the lengths in the head of its hunk: a removed ``-- x`` looks like a file's name.
    """
    path = old_path = ""
    old = new = old_left = new_left = 0
    for line in lines:
        text = line[:MAX_LINE_CHARS]
        kind = _KINDS.get(line[:1]) if old_left > 0 or new_left > 0 else None
        if kind is not None:
            yield path, DiffRow(kind, text[1:], old if kind != "add" else None, new if kind != "del" else None)
            old, old_left = old + (kind != "add"), old_left - (kind != "add")
            new, new_left = new + (kind != "del"), new_left - (kind != "del")
        elif match := _HUNK.match(line):
            old, old_left, new, new_left = (int(one[:9]) if one else 1 for one in match.groups())
            yield path, DiffRow("hunk", text)
        elif line.startswith("--- "):
            old_path = text[4:].removeprefix("a/")
        elif line.startswith("+++ "):
            path = text[4:].removeprefix("b/")
            yield path, DiffRow("file", _file_label(old_path, path))
        else:
            yield path, DiffRow("note", text)


def _file_label(old_path: str, new_path: str) -> str:
    if old_path == "/dev/null":
        return f"{new_path} (new file)"
    if new_path == "/dev/null":
        return f"{old_path} (removed)"
    return new_path if old_path == new_path else f"{old_path} → {new_path}"


def _with_findings(row: DiffRow, path: str, waiting: list[Finding]) -> DiffRow:
    """The row with the findings on its line, which are taken out of ``waiting``."""
    here = tuple(
        one for one in waiting if row.new_number is not None and one.path == path and one.line == row.new_number
    )
    for one in here:
        waiting.remove(one)
    return DiffRow(row.kind, row.text, row.old_number, row.new_number, here) if here else row


def _extract(finding: Finding, files: Mapping[str, str | None]) -> Extract:
    text = files.get(finding.path)
    if not text or not finding.line:
        return Extract(finding)
    first = max(1, finding.line - _CONTEXT_LINES)
    lines = text.split("\n")[first - 1 : finding.line + _CONTEXT_LINES]
    return Extract(finding, tuple((first + index, line[:MAX_LINE_CHARS]) for index, line in enumerate(lines)))
