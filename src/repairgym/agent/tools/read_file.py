"""The ``read_file`` tool of paper A (appendix A.2)."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.records import Record

MAX_CHARS = 30_000


class ReadFileArguments(Record):
    """What ``read_file`` takes."""

    path: str = Field(description="relative to the repository root")
    first_line: PositiveInt = 1
    last_line: PositiveInt | None = Field(default=None, description="default: the last line of the file")


class ReadFileTool(Tool[ReadFileArguments]):
    """``read_file``: the text of a file, or of some of its lines."""

    name = "read_file"
    usage = "read_file PATH [FIRST_LINE] [LAST_LINE] - print a file or some of its lines"
    arguments_type = ReadFileArguments

    async def run(self, context: ToolContext, arguments: ReadFileArguments) -> Observation:
        """Print the lines as they are: what is read can be written back."""
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
