"""The ``write_file`` tool of paper A (appendix A.2): whole files only; the patch is made outside."""

from __future__ import annotations

import json

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, UsageError
from repairgym.records import Record


class WriteFileArguments(Record):
    """What ``write_file`` takes."""

    path: str = Field(description="relative to the repository root")
    content: str = Field(description="the whole new text of the file")


class WriteFileTool(Tool[WriteFileArguments]):
    """``write_file``: replace or create a file."""

    name = "write_file"
    usage = 'write_file PATH "CONTENT" - replace or create a file; CONTENT is its whole text'
    arguments_type = WriteFileArguments

    def read(self, text: str) -> WriteFileArguments:
        """Path and content as a JSON string: a text format has one line."""
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
