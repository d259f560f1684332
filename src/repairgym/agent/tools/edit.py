"""Tools that change files, and compact edits as pure text functions.

``edit``, ``line`` and ``undo`` change the open window; ``write`` (compact) and ``write_file`` (paper A, appendix A.2)
whole files. A compact edit replaces a token sequence on a line, or is answered by a sentence that says how to correct
it. Invariant: it never matches inside a longer token (``<`` does not match in ``<=``, ``1`` not in ``10``).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from pydantic import Field

from repairgym.agent.tools.base import (
    NoArguments,
    Observation,
    TextArguments,
    Tool,
    ToolContext,
    UsageError,
    tool_error,
)
from repairgym.agent.tools.window import Window, render_line
from repairgym.records import Record

_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*=|//=|>>=|<<=|->|:=|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%&|^@]=|\s+|.", re.DOTALL
)
_EDIT = re.compile(r"(\S.*?) => (.*?) @(\d+)(?: #(\d+))?", re.DOTALL)
_LINE = re.compile(r"@(\d+)(.*)", re.DOTALL)
NO_WINDOW = "no file is open; use view PATH"
UNDONE = "undone"


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
    """Return the edit with the right label (the only one with OLD if it was wrong), or a sentence that corrects it."""
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


# --- tools ---------------------------------------------------------------------------------------------------------

EditT = TypeVar("EditT", CompactEdit, LineEdit)


class EditTool(Tool[TextArguments]):
    """``edit OLD => NEW @LABEL [#K]``: replace one token sequence on one line."""

    name = "edit"
    usage = "edit OLD => NEW @LABEL [#K] - on that line replace the K-th OLD (default the first) by NEW"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Apply a compact edit and show the new line."""
        return await _replace_line(self, context, parse_compact_edit(arguments.argument), _after_compact_edit)


class LineTool(Tool[TextArguments]):
    """``line @LABEL TEXT``: replace a whole line."""

    name = "line"
    usage = "line @LABEL TEXT - replace the whole line by TEXT, written with its indentation"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Apply a whole-line edit and show the new line."""
        return await _replace_line(self, context, parse_line_edit(arguments.argument), _after_line_edit)


async def _replace_line(
    tool: Tool[Any],
    context: ToolContext,
    edit: EditT | None,
    changed: Callable[[str, Window, EditT], tuple[int, str] | str],
) -> Observation:
    """Replace the line that ``edit`` means in the open window; ``changed`` returns its label and new text."""
    if edit is None:
        return tool_error(f"usage: {tool.usage}")
    window = context.window
    if window is None:
        return tool_error(NO_WINDOW)
    text = context.workspace.read(window.path)
    if text is None:
        return tool_error(f"{window.path} cannot be read")
    meant = changed(text, window, edit)
    if isinstance(meant, str):
        return tool_error(meant)
    label, new_line = meant
    lines = text.splitlines(keepends=True)
    lines[window.line_numbers[label - 1] - 1] = new_line
    context.undo_stack.append((window.path, text))
    await context.workspace.write(window.path, "".join(lines))
    return Observation(text=render_line(label, new_line.rstrip("\n")))


def _after_compact_edit(text: str, window: Window, edit: CompactEdit) -> tuple[int, str] | str:
    meant = resolve_edit(text, window, edit)
    if isinstance(meant, str):
        return meant
    new_line = replace_on_line(text.splitlines(keepends=True)[window.line_numbers[meant.label - 1] - 1], meant)
    assert new_line is not None
    return meant.label, new_line


def _after_line_edit(text: str, window: Window, edit: LineEdit) -> tuple[int, str] | str:
    number = window.line_number(edit.label)
    if number is None:
        return no_such_line(edit.label, window)
    ending = "\n" if text.splitlines(keepends=True)[number - 1].endswith("\n") else ""
    return edit.label, edit.text.rstrip() + ending


class UndoTool(Tool[NoArguments]):
    """``undo``: take back the last edit."""

    name = "undo"
    usage = "undo - take back the last edit"

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Restore the text before the last edit."""
        if not context.undo_stack:
            return tool_error("nothing to undo")
        path, text = context.undo_stack.pop()
        await context.workspace.write(path, text)
        return Observation(text=UNDONE)


class WriteTool(Tool[TextArguments]):
    """``write PATH JSON_STRING``: replace or create a file."""

    name = "write"
    usage = 'write PATH "TEXT" - replace the whole file by TEXT, a JSON string'

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Write one file inside the repository."""
        path, _, encoded = arguments.argument.partition(" ")
        try:
            text = json.loads(encoded)
        except ValueError:
            text = None
        if not path or not isinstance(text, str):
            return tool_error(f"usage: {self.usage}")
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            return tool_error(f"{path} is outside the repository")
        before = context.workspace.read(path)
        if before is not None:
            context.undo_stack.append((path, before))
        await context.workspace.write(path, text)
        return Observation(text=f"wrote {len(text.splitlines())} lines to {path}")


class WriteFileArguments(Record):
    """Arguments of ``write_file``."""

    path: str = Field(description="relative to the repository root")
    content: str = Field(description="the whole new text of the file")


class WriteFileTool(Tool[WriteFileArguments]):
    """``write_file``: replace or create a file."""

    name = "write_file"
    usage = 'write_file PATH "CONTENT" - replace or create a file; CONTENT is its whole text'

    def read(self, text: str) -> WriteFileArguments:
        """Read path and content as a JSON string: a text format has one line."""
        path, _, encoded = text.partition(" ")
        try:
            content = json.loads(encoded)
        except ValueError as error:
            raise UsageError(f"the content is no JSON string ({error})") from None
        return self.check({"path": path, "content": content})

    async def run(self, context: ToolContext, arguments: WriteFileArguments) -> Observation:
        """Write one file inside of the repository."""
        path = arguments.path.removeprefix("./")
        await context.workspace.write(path, arguments.content)
        return Observation(text=f"wrote {len(arguments.content.splitlines())} lines to {path}")
