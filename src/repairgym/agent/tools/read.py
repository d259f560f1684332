"""Tools that show files.

``view`` shows compact windows, ``read_file`` (paper A, appendix A.2) a whole file; ``open``, ``goto``, ``scroll_down``
and ``scroll_up`` move the window of paper B's editor (appendix E).
"""

import re

from pydantic import Field, PositiveInt

from repairgym.agent.tools.base import (
    NoArguments,
    Observation,
    TextArguments,
    Tool,
    ToolContext,
    UsageError,
    tool_error,
)
from repairgym.agent.tools.editor import EditorTool, open_file, repository_path
from repairgym.agent.tools.window import open_window, scrolled
from repairgym.records import Record

MAX_CHARS = 30_000


_TARGET = re.compile(r"(\S+?)(?::(\d+))?")


class ViewTool(Tool[TextArguments]):
    """``view [PATH[:LINE]]``: show a window of a file; without PATH, the open window again."""

    name = "view"
    usage = "view [PATH[:LINE]] - show a file from LINE on; without PATH the open window again"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Open a window or show it again."""
        wanted = arguments.argument.strip()
        if not wanted:
            if context.window is None:
                return tool_error("no file is open; use view PATH")
            return Observation(text=context.window.render(context.workspace.read(context.window.path) or ""))
        match = _TARGET.fullmatch(wanted)
        path, line = (match.group(1), int(match.group(2) or 1)) if match else (wanted, 1)
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; search TEXT lists places")
        window = open_window(path, text, line)
        if not window.line_numbers:
            return tool_error(f"{path} has no line {line}; it ends at {len(text.splitlines())}")
        context.window = window
        return Observation(text=f"{path}:{window.line_numbers[0]}\n{window.render(text)}")


class ReadFileArguments(Record):
    """Arguments of ``read_file``."""

    path: str = Field(description="relative to the repository root")
    first_line: PositiveInt = 1
    last_line: PositiveInt | None = Field(default=None, description="default: the last line of the file")


class ReadFileTool(Tool[ReadFileArguments]):
    """``read_file``: the text of a file, or of some of its lines."""

    name = "read_file"
    usage = "read_file PATH [FIRST_LINE] [LAST_LINE] - print a file or some of its lines"
    arguments_type = ReadFileArguments

    async def run(self, context: ToolContext, arguments: ReadFileArguments) -> Observation:
        """Print the lines as they are, so that they can be written back."""
        path = arguments.path.removeprefix("./")
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; find_files lists the files")
        lines = text.splitlines(keepends=True)
        if arguments.first_line > max(1, len(lines)):
            return tool_error(f"{path} has {len(lines)} lines, first_line is {arguments.first_line}")
        shown = "".join(lines[arguments.first_line - 1 : arguments.last_line])
        if len(shown) <= MAX_CHARS:
            return Observation(text=shown)
        return Observation(
            text=f"{shown[:MAX_CHARS]}\n... {len(shown) - MAX_CHARS} characters more; ask for fewer lines"
        )


_OVERLAP = 2
"""Lines that two windows share after scrolling."""


class OpenArguments(Record):
    """A file and a line."""

    file: str = Field(default="", description="path of the file; the one that is open when left out")
    line_number: int = Field(default=0, description="line to show in the middle; where the file was when left out")


class OpenTool(EditorTool[OpenArguments]):
    """``open [FILE] [LINE_NUMBER]``: show a file; without FILE, the last one again."""

    name = "open"
    usage = "open [FILE] [LINE_NUMBER] - open a file and show it around a line; without FILE show the last one again"
    arguments_type = OpenArguments

    def read(self, text: str) -> OpenArguments:
        """Read a single number as a line of the open file."""
        arguments = super().read(text)
        if arguments.file.isdigit() and not arguments.line_number:
            return OpenArguments(line_number=int(arguments.file))
        return arguments

    async def run(self, context: ToolContext, arguments: OpenArguments) -> Observation:
        """Open the window."""
        if arguments.file:
            path = repository_path(context, arguments.file)
            self.look_at(context, path, arguments.line_number or 1)
        elif arguments.line_number:
            self.look_at(context, open_file(context)[0].path, arguments.line_number)
        return self.show(context)


class GotoArguments(Record):
    """The target line."""

    line_number: int = Field(description="line to show in the middle of the window")


class GotoTool(EditorTool[GotoArguments]):
    """``goto LINE_NUMBER``: move the window."""

    name = "goto"
    usage = "goto LINE_NUMBER - move the window of the open file to a line"
    arguments_type = GotoArguments

    async def run(self, context: ToolContext, arguments: GotoArguments) -> Observation:
        """Move the window."""
        self.look_at(context, open_file(context)[0].path, arguments.line_number)
        return self.show(context)


class ScrollDownTool(EditorTool[NoArguments]):
    """``scroll_down``: the next window."""

    name = "scroll_down"
    usage = "scroll_down - move the window down"
    arguments_type = NoArguments

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Move the window down."""
        return _scroll(self, context, self.num_lines - _OVERLAP)


class ScrollUpTool(EditorTool[NoArguments]):
    """``scroll_up``: the window before."""

    name = "scroll_up"
    usage = "scroll_up - move the window up"
    arguments_type = NoArguments

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Move the window up."""
        return _scroll(self, context, _OVERLAP - self.num_lines)


def _scroll(tool: EditorTool[NoArguments], context: ToolContext, step: int) -> Observation:
    view, text = open_file(context)
    moved = scrolled(view, text, tool.num_lines, step or 1)
    if moved == view:
        raise UsageError(f"the window already shows the {'end' if step > 0 else 'start'} of {view.path}")
    context.view = moved
    return tool.show(context)
