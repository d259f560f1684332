"""Tools that change files.

``edit``, ``line``, ``insert``, ``delete`` and ``undo`` change the open window (`window_edits`); ``write`` (compact) and
``write_file`` (paper A, appendix A.2) whole files.
"""

import json
from pathlib import PurePosixPath

from pydantic import Field

from repairgym.agent.tools.base import (
    NoArguments,
    Observation,
    TextArguments,
    Tool,
    ToolContext,
    UndoStep,
    UsageError,
    tool_error,
)
from repairgym.agent.tools.window_edits import USAGES, change_of
from repairgym.diffs.lines import source_lines
from repairgym.records import Record

NO_WINDOW = "no file is open; use view PATH"
UNDONE = "undone"


class WindowTool(Tool[TextArguments]):
    """A tool that changes a line of the open window and shows it."""

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Apply the edit (`window_edits.change_of`)."""
        window = context.window
        if window is None:
            return tool_error(NO_WINDOW)
        text = context.workspace.read(window.path)
        if text is None:
            return tool_error(f"{window.path} cannot be read")
        change = change_of(self.name, text, window, arguments.argument)
        if isinstance(change, str):
            return tool_error(change)
        context.undo_stack.append(UndoStep(window.path, text, window, change.window))
        context.window = change.window
        await context.workspace.write(window.path, change.text)
        return Observation(text=change.observation)


class EditTool(WindowTool):
    """``edit OLD => NEW @LABEL [#K]``: replace one token sequence on one line."""

    name = "edit"
    usage = USAGES["edit"]


class LineTool(WindowTool):
    """``line @LABEL TEXT``: replace a whole line."""

    name = "line"
    usage = USAGES["line"]


class InsertTool(WindowTool):
    """``insert @LABEL TEXT``: add a line, which gets the next free label."""

    name = "insert"
    usage = USAGES["insert"]


class DeleteTool(WindowTool):
    """``delete @LABEL``: remove a line; the other labels stay."""

    name = "delete"
    usage = USAGES["delete"]


class UndoTool(Tool[NoArguments]):
    """``undo``: take back the last edit."""

    name = "undo"
    usage = "undo - take back the last edit"

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Restore the text before the last edit."""
        if not context.undo_stack:
            return tool_error("nothing to undo")
        step = context.undo_stack.pop()
        is_same_file = context.window is not None and context.window.path == step.path
        if is_same_file and step.window != step.window_after:
            # Lines moved: the labels are again those of the window in which the edit was made.
            context.window = step.window
        if step.text is None:
            await context.workspace.remove(step.path)
        else:
            await context.workspace.write(step.path, step.text)
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
        except (ValueError, RecursionError):
            text = None
        if not path or not isinstance(text, str):
            return tool_error(f"usage: {self.usage}")
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            return tool_error(f"{path} is outside the repository")
        before = context.workspace.read(path)
        await context.workspace.write(path, text)
        context.undo_stack.append(UndoStep(path, before))
        return Observation(text=f"wrote {len(source_lines(text))} lines to {path}")


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
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the content is no JSON string ({error})") from None
        return self.check({"path": path, "content": content})

    async def run(self, context: ToolContext, arguments: WriteFileArguments) -> Observation:
        """Write one file inside of the repository."""
        path = arguments.path.removeprefix("./")
        await context.workspace.write(path, arguments.content)
        return Observation(text=f"wrote {len(source_lines(arguments.content))} lines to {path}")
