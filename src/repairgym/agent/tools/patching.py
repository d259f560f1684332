"""Compact edits as pure text functions: find a token sequence on a line and replace it.

Reads one line and an edit command; makes the new line or a sentence that says how to correct the command. Invariant: an
edit never matches inside a longer token (``<`` does not match in ``<=``, ``1`` not in ``10``).
"""

import re
from dataclasses import dataclass, replace

from repairgym.agent.tools.window import Window

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*=|//=|>>=|<<=|->|:=|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%&|^@]=|\s+|.", re.DOTALL
)
_EDIT = re.compile(r"(\S.*?) => (.*?) @(\d+)(?: #(\d+))?", re.DOTALL)
_LINE = re.compile(r"@(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True)
class CompactEdit:
    """``edit OLD => NEW @LABEL [#K]``: replace the K-th OLD on the labeled line.

    The text comes before the label on purpose: once OLD is written, its line is a look-up (docs/adr/004).
    """

    label: int
    old: str
    new: str
    occurrence: int = 1

    def __str__(self) -> str:
        suffix = f" #{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.old} => {self.new} @{self.label}{suffix}"


@dataclass(frozen=True)
class LineEdit:
    """``line @LABEL TEXT``: replace the labeled line; TEXT keeps its indentation, empty leaves a blank line."""

    label: int
    text: str


def parse_compact_edit(argument: str) -> CompactEdit | None:
    """Parse the argument of ``edit``; None when it is malformed."""
    match = _EDIT.fullmatch(argument)
    if match is None:
        return None
    old, new, label, occurrence = match.groups()
    return CompactEdit(int(label), old.strip(), new.strip(), int(occurrence or 1))


def parse_line_edit(argument: str) -> LineEdit | None:
    """Parse the argument of ``line``; None when it is malformed."""
    match = _LINE.fullmatch(argument)
    if match is None:
        return None
    text = match.group(2)
    return LineEdit(int(match.group(1)), text[1:] if text[:1] == " " and text[1:2] != " " else text)


def find_occurrences(line: str, old: str) -> list[tuple[int, int]]:
    """Return [start, end) character ranges of the tokens of ``old`` on ``line``, white space between them ignored."""
    wanted = [token for token in _TOKEN.findall(old) if not token.isspace()]
    tokens = [match for match in _TOKEN.finditer(line) if not match.group().isspace()]
    ranges = []
    for start in range(len(tokens) - len(wanted) + 1) if wanted else ():
        window = tokens[start : start + len(wanted)]
        if [match.group() for match in window] == wanted:
            ranges.append((window[0].start(), window[-1].end()))
    return ranges


def replace_on_line(line: str, edit: CompactEdit) -> str | None:
    """Return the line after ``edit``; None when the line holds fewer than ``occurrence`` of OLD."""
    places = find_occurrences(line, edit.old)
    if not 1 <= edit.occurrence <= len(places):
        return None
    start, end = places[edit.occurrence - 1]
    return line[:start] + edit.new + line[end:]


def edit_at(line: str, label: int, column: int, old: str, new: str) -> CompactEdit | None:
    """Return the edit that replaces ``old`` at ``column`` of ``line`` by ``new``; None when it cannot be written so."""
    for occurrence, (start, _) in enumerate(find_occurrences(line, old), 1):
        if start == column:
            return CompactEdit(label, old, new, occurrence)
    return None


def resolve_edit(text: str, window: Window, edit: CompactEdit) -> CompactEdit | str:
    """Return the edit with the label of the intended line, or a sentence that says how to correct it.

    A wrong label is forgiven when OLD stands on one visible line only.
    """
    if window.line_number(edit.label) is None:
        return no_such_line(edit.label, window)
    lines = text.splitlines()
    labels = [k for k, n in enumerate(window.line_numbers, 1) if find_occurrences(lines[n - 1], edit.old)]
    if not labels:
        return f"{edit.old} is not in the window"
    if edit.label not in labels and len(labels) > 1:
        return f"{edit.old} is on " + " ".join(f"@{label}" for label in labels[:6])
    meant = edit if edit.label in labels else replace(edit, label=labels[0])
    if replace_on_line(lines[window.line_numbers[meant.label - 1] - 1], meant) is None:
        return f"@{meant.label} has no {edit.old} #{edit.occurrence}"
    return meant


def no_such_line(label: int, window: Window) -> str:
    """Return the error for a label that the window lacks."""
    return f"no line @{label}; the window ends at @{len(window.line_numbers)}"
