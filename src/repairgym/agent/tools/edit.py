"""Tools that change files.

``edit``, ``line`` and ``undo`` change the open window; ``write`` (compact) and ``write_file`` (paper A, appendix A.2)
whole files.
"""

import json
from collections.abc import Callable
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
from repairgym.agent.tools.patching import (
    CompactEdit,
    LineEdit,
    no_such_line,
    parse_compact_edit,
    parse_line_edit,
    replace_on_line,
    resolve_edit,
)
from repairgym.agent.tools.window import Window, render_line
from repairgym.records import Record

EditT = TypeVar("EditT", CompactEdit, LineEdit)
NO_WINDOW = "no file is open; use view PATH"
UNDONE = "undone"


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
