"""The ``write`` tool: whole-file writes, as in paper A (appendix A.2)."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from repairgym.agent.tools.base import Observation, TextArguments, Tool, ToolContext, tool_error


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
