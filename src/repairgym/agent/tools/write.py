"""Tools that write whole files: ``write`` (compact), ``write_file`` (paper A, appendix A.2)."""

import json
from pathlib import PurePosixPath

from pydantic import Field

from repairgym.agent.tools.base import Observation, TextArguments, Tool, ToolContext, UsageError, tool_error
from repairgym.records import Record


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
    arguments_type = WriteFileArguments

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
