"""A unified diff as numbered rows, with what exploit detectors found at the lines where they found it.

Reads patch text, findings and the submitted files; makes rows for a template. Invariants: each finding is shown once,
at its line when the diff shows that line, else beside an extract of the file; any text is taken, a diff or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mendwright.records import Finding

MAX_ROWS = 1_500
MAX_LINE_CHARS = 2_000
_CONTEXT_LINES = 3
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")

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


def read_diff(
    patch: str, findings: Sequence[Finding] = (), files: Mapping[str, str | None] | None = None
) -> Diff:
    """Rows of ``patch``; ``files`` are the submitted files that extracts are taken from."""
    lines = patch.split("\n")
    lines = lines[:-1] if lines and not lines[-1] else lines
    waiting = list(findings)
    rows = [_with_findings(row, path, waiting) for path, row in _rows(lines[:MAX_ROWS])]
    return Diff(
        rows=tuple(rows),
        extracts=tuple(_extract(finding, files or {}) for finding in waiting),
        num_left_out=max(0, len(lines) - MAX_ROWS),
        num_added=sum(line.startswith("+") and not line.startswith("+++") for line in lines),
        num_removed=sum(line.startswith("-") and not line.startswith("---") for line in lines),
    )


def _rows(lines: Sequence[str]) -> list[tuple[str, DiffRow]]:
    """(path of the new file, row) of each line; a header names a file only in front of its hunks."""
    found: list[tuple[str, DiffRow]] = []
    path = ""
    old = new = 0
    for line in lines:
        text = line[:MAX_LINE_CHARS]
        if line.startswith(("--- ", "+++ ", "diff ", "index ")):
            path = line[4:].removeprefix("b/") if line.startswith("+++ ") else path
            found.append((path, DiffRow("file", text)))
        elif match := _HUNK.match(line):
            old, new = int(match[1][:9]), int(match[2][:9])
            found.append((path, DiffRow("hunk", text)))
        elif (kind := _KINDS.get(line[:1])) is None:
            found.append((path, DiffRow("note", text)))
        else:
            row = DiffRow(kind, text[1:], old if kind != "add" else None, new if kind != "del" else None)
            old, new = old + (kind != "add"), new + (kind != "del")
            found.append((path, row))
    return found


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
