"""Tools that look at a file in windows: ``open``, ``goto``, ``scroll_down``, ``scroll_up`` (paper B, appendix E)."""

from __future__ import annotations

from pydantic import Field

from repairgym.agent.tools.base import NoArguments, Observation, ToolContext, UsageError
from repairgym.agent.tools.editor import EditorTool, open_file, repository_path
from repairgym.agent.tools.file_view import scrolled
from repairgym.records import Record

_OVERLAP = 2
"""Lines that two windows share when one scrolls."""


class OpenArguments(Record):
    """Which file, around which line."""

    file: str = Field(default="", description="path of the file; the one that is open when left out")
    line_number: int = Field(default=0, description="line to show in the middle; where the file was when left out")


class OpenTool(EditorTool[OpenArguments]):
    """``open [FILE] [LINE_NUMBER]``: show a file; without FILE, the last one again."""

    name = "open"
    usage = "open [FILE] [LINE_NUMBER] - open a file and show it around a line; without FILE show the last one again"
    arguments_type = OpenArguments

    def read(self, text: str) -> OpenArguments:
        """A single number is a line of the open file."""
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
    """Where to."""

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
