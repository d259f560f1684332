"""Tools that change the open window: ``edit``, ``line`` and ``undo``."""

from repairgym.agent.tools.base import NoArguments, Observation, TextArguments, Tool, ToolContext, tool_error
from repairgym.agent.tools.patching import (
    no_such_line,
    parse_compact_edit,
    parse_line_edit,
    replace_on_line,
    resolve_edit,
)
from repairgym.agent.tools.window import Window, render_line

NO_WINDOW = "no file is open; use view PATH"
UNDONE = "undone"


class EditTool(Tool[TextArguments]):
    """``edit OLD => NEW @LABEL [#K]``: replace one token sequence on one line."""

    name = "edit"
    usage = "edit OLD => NEW @LABEL [#K] - on that line replace the K-th OLD (default the first) by NEW"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Apply a compact edit and show the new line."""
        edit = parse_compact_edit(arguments.argument)
        if edit is None:
            return tool_error(f"usage: {self.usage}")
        opened = _open_text(context)
        if isinstance(opened, Observation):
            return opened
        window, text = opened
        meant = resolve_edit(text, window, edit)
        if isinstance(meant, str):
            return tool_error(meant)
        lines = text.splitlines(keepends=True)
        new_line = replace_on_line(lines[window.line_numbers[meant.label - 1] - 1], meant)
        assert new_line is not None
        return await _replace_line(context, window, lines, meant.label, new_line)


class LineTool(Tool[TextArguments]):
    """``line @LABEL TEXT``: replace a whole line."""

    name = "line"
    usage = "line @LABEL TEXT - replace the whole line by TEXT, written with its indentation"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Apply a whole-line edit and show the new line."""
        edit = parse_line_edit(arguments.argument)
        if edit is None:
            return tool_error(f"usage: {self.usage}")
        opened = _open_text(context)
        if isinstance(opened, Observation):
            return opened
        window, text = opened
        number = window.line_number(edit.label)
        if number is None:
            return tool_error(no_such_line(edit.label, window))
        lines = text.splitlines(keepends=True)
        ending = "\n" if lines[number - 1].endswith("\n") else ""
        return await _replace_line(context, window, lines, edit.label, edit.text.rstrip() + ending)


class UndoTool(Tool[NoArguments]):
    """``undo``: take back the last edit."""

    name = "undo"
    usage = "undo - take back the last edit"
    arguments_type = NoArguments

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Restore the text before the last edit."""
        if not context.undo_stack:
            return tool_error("nothing to undo")
        path, text = context.undo_stack.pop()
        await context.workspace.write(path, text)
        return Observation(text=UNDONE)


def _open_text(context: ToolContext) -> tuple[Window, str] | Observation:
    if context.window is None:
        return tool_error(NO_WINDOW)
    text = context.workspace.read(context.window.path)
    return (context.window, text) if text is not None else tool_error(f"{context.window.path} cannot be read")


async def _replace_line(
    context: ToolContext, window: Window, lines: list[str], label: int, new_line: str
) -> Observation:
    number = window.line_numbers[label - 1]
    before = "".join(lines)
    lines[number - 1] = new_line
    context.undo_stack.append((window.path, before))
    await context.workspace.write(window.path, "".join(lines))
    return Observation(text=render_line(label, new_line.rstrip("\n")))
