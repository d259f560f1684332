"""The ``find_files_with_text`` tool of paper A (appendix A.2): files and lines that hold a text."""

from __future__ import annotations

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.find_files import matching_paths
from repairgym.records import Record

MAX_LINES = 40
MAX_LINE_CHARS = 160


class FindFilesWithTextArguments(Record):
    """What ``find_files_with_text`` takes."""

    text: str = Field(description="plain text; upper and lower case are told apart")
    pattern: str = Field(default="*", description="only in files whose name or path matches it")
    folder: str = Field(default="", description="only below this folder")


class FindFilesWithTextTool(Tool[FindFilesWithTextArguments]):
    """``find_files_with_text``: PATH:LINE of every place."""

    name = "find_files_with_text"
    usage = "find_files_with_text TEXT [PATTERN] [FOLDER] - list PATH:LINE of the lines that contain TEXT"
    arguments_type = FindFilesWithTextArguments

    async def run(self, context: ToolContext, arguments: FindFilesWithTextArguments) -> Observation:
        """Search the text files that match the pattern."""
        if not arguments.text:
            return tool_error(f"text is empty; usage: {self.usage}")
        hits = [
            f"{path}:{number} {line.strip()[:MAX_LINE_CHARS]}"
            for path in matching_paths(context, arguments.pattern, arguments.folder)
            for number, line in enumerate((context.workspace.read(path) or "").splitlines(), 1)
            if arguments.text in line
        ]
        left_out = f"\n... and {len(hits) - MAX_LINES} more" if len(hits) > MAX_LINES else ""
        return Observation(text="\n".join([f"found {len(hits)}", *hits[:MAX_LINES]]) + left_out)
