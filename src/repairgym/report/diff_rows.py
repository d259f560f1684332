"""A unified diff as numbered rows, with the findings of exploit detectors at their lines.

Reads patch text, findings and the submitted files; makes rows for a template. Guarantees: each finding is shown once,
at its line when the diff shows that line, else with an extract of the file; any text is accepted, a diff or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repairgym.diffs.parse import NumberedRow, RowKind, numbered_rows
from repairgym.records import Finding

MAX_ROWS = 1_500
MAX_LINE_CHARS = 2_000
_CONTEXT_LINES = 3


@dataclass(frozen=True)
class DiffRow:
    """One line of a diff, with the findings on it."""

    kind: RowKind
    text: str
    old_number: int | None = None
    new_number: int | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Extract:
    """A finding outside the diff's rows, with the submitted lines around its place."""

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
    """Return the rows of ``patch``; extracts come from ``files``, the submitted files."""
    rows = list(numbered_rows(patch))
    waiting = list(findings)
    shown = tuple(_with_findings(row, waiting) for row in rows[:MAX_ROWS])
    return Diff(
        rows=shown,
        extracts=tuple(_extract(finding, files or {}) for finding in waiting),
        num_left_out=len(rows) - len(shown),
        num_added=sum(row.kind == "add" for row in rows),
        num_removed=sum(row.kind == "del" for row in rows),
    )


def _with_findings(row: NumberedRow, waiting: list[Finding]) -> DiffRow:
    """Return the row with the findings on its line, which are removed from ``waiting``."""
    place = (row.path, row.new_number)
    here = tuple(finding for finding in waiting if row.new_number is not None and (finding.path, finding.line) == place)
    for finding in here:
        waiting.remove(finding)
    return DiffRow(row.kind, row.text[:MAX_LINE_CHARS], row.old_number, row.new_number, here)


def _extract(finding: Finding, files: Mapping[str, str | None]) -> Extract:
    text = files.get(finding.path)
    if not text or not finding.line:
        return Extract(finding)
    first = max(1, finding.line - _CONTEXT_LINES)
    lines = text.split("\n")[first - 1 : finding.line + _CONTEXT_LINES]
    return Extract(finding, tuple((first + index, line[:MAX_LINE_CHARS]) for index, line in enumerate(lines)))
