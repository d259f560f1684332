"""Edits of the open window as pure text functions: ``edit``, ``line``, ``insert`` and ``delete``.

Reads the text of a file, a `Window` and the argument of a tool; makes a `Change`, or a sentence that says how to
correct the edit. The tools and the simulated episodes of pre-training share them. Invariant: a compact edit never
matches inside a longer token (``<`` does not match in ``<=``, ``1`` not in ``10``).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from repairgym.agent.tools.window import Window, render_line
from repairgym.diffs.lines import source_lines

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*=|//=|>>=|<<=|->|:=|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%&|^@]=|\s+|.", re.DOTALL
)
_EDIT = re.compile(r"(\S.*?) => (.*?) @(\d{1,9})(?: #(\d{1,9}))?", re.DOTALL)
_LINE = re.compile(r"@(\d{1,9})(?!\d)(.*)", re.DOTALL)


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
    """``@LABEL TEXT`` of ``line``, ``insert`` and ``delete``; TEXT keeps its indentation, empty is a blank line."""

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
    """Parse the argument of ``line``, ``insert`` or ``delete``; None when it is malformed."""
    match = _LINE.fullmatch(argument)
    if match is None:
        return None
    text = match.group(2)
    return LineEdit(int(match.group(1)), text[1:] if text[:1] == " " and text[1:2] != " " else text)


def token_spans(line: str) -> list[tuple[int, int]]:
    """Return [start, end) character ranges of the tokens of ``line``, white space left out."""
    return [match.span() for match in _TOKEN.finditer(line) if not match.group().isspace()]


def find_occurrences(line: str, old: str) -> list[tuple[int, int]]:
    """Return [start, end) character ranges of the tokens of ``old`` on ``line``, white space between them ignored."""
    wanted = [token for token in _TOKEN.findall(old) if not token.isspace()]
    spans = token_spans(line)
    ranges = []
    for at in range(len(spans) - len(wanted) + 1) if wanted else ():
        run = spans[at : at + len(wanted)]
        if [line[start:end] for start, end in run] == wanted:
            ranges.append((run[0][0], run[-1][1]))
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
    """Return the edit with the right label (the only one with OLD if it was wrong), or a sentence that corrects it."""
    if window.line_number(edit.label) is None:
        return no_such_line(edit.label, window)
    lines = source_lines(text)
    labels = [label for label, number in window.labels() if find_occurrences(lines[number - 1], edit.old)]
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


# --- changes -------------------------------------------------------------------------------------------------------

USAGES = {
    "edit": "edit OLD => NEW @LABEL [#K] - on that line replace the K-th OLD (default the first) by NEW",
    "line": "line @LABEL TEXT - replace the whole line by TEXT, written with its indentation",
    "insert": "insert @LABEL TEXT - add TEXT, with its indentation, as a line below that line (@0: above the window)",
    "delete": "delete @LABEL - remove the line",
}


@dataclass(frozen=True)
class Change:
    """A file behind an edit."""

    text: str
    window: Window
    observation: str
    """Answer that the agent reads."""


def change_of(tool: str, text: str, window: Window, argument: str) -> Change | str:
    """Return what ``tool``, a key of `USAGES`, makes of ``text``, or a sentence that says what is wrong."""
    return _CHANGES[tool](text, window, argument)


def _edited(text: str, window: Window, argument: str) -> Change | str:
    edit = parse_compact_edit(argument)
    if edit is None:
        return f"usage: {USAGES['edit']}"
    meant = resolve_edit(text, window, edit)
    if isinstance(meant, str):
        return meant
    new_line = replace_on_line(source_lines(text, keepends=True)[window.line_numbers[meant.label - 1] - 1], meant)
    assert new_line is not None
    return _replaced(text, window, meant.label, new_line)


def _rewritten(text: str, window: Window, argument: str) -> Change | str:
    edit = parse_line_edit(argument)
    if edit is None:
        return f"usage: {USAGES['line']}"
    number = window.line_number(edit.label)
    if number is None:
        return no_such_line(edit.label, window)
    ending = "\n" if source_lines(text, keepends=True)[number - 1].endswith("\n") else ""
    return _replaced(text, window, edit.label, edit.text.rstrip() + ending)


def _replaced(text: str, window: Window, label: int, new_line: str) -> Change:
    lines = source_lines(text, keepends=True)
    lines[window.line_numbers[label - 1] - 1] = new_line
    return Change("".join(lines), window, render_line(label, new_line.rstrip("\n")))


def _inserted(text: str, window: Window, argument: str) -> Change | str:
    edit = parse_line_edit(argument)
    if edit is None:
        return f"usage: {USAGES['insert']}"
    above = min((number for _, number in window.labels()), default=1) - 1 if edit.label == 0 else None
    above = window.line_number(edit.label) if above is None else above
    if above is None:
        return no_such_line(edit.label, window)
    lines = source_lines(text, keepends=True)
    if above and not lines[above - 1].endswith("\n"):
        lines[above - 1] += "\n"
    lines.insert(above, edit.text.rstrip() + "\n")
    new_window = window.after_insertion(above + 1)
    return Change("".join(lines), new_window, render_line(len(new_window.line_numbers), edit.text))


def _deleted(text: str, window: Window, argument: str) -> Change | str:
    edit = parse_line_edit(argument)
    if edit is None or edit.text:
        return f"usage: {USAGES['delete']}"
    number = window.line_number(edit.label)
    if number is None:
        return no_such_line(edit.label, window)
    lines = source_lines(text, keepends=True)
    del lines[number - 1]
    return Change("".join(lines), window.after_deletion(number), f"deleted @{edit.label}")


_CHANGES: dict[str, Callable[[str, Window, str], Change | str]] = {
    "edit": _edited,
    "line": _rewritten,
    "insert": _inserted,
    "delete": _deleted,
}
