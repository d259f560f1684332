"""The ``search_file`` tool: lines of one file that hold a text (paper B, appendix E)."""

from __future__ import annotations

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext
from repairgym.agent.tools.editor import open_file, read_text, repository_path
from repairgym.records import Record

_MAX_HITS = 100


class SearchFileArguments(Record):
    """What to look for, where."""

    search_term: str = Field(description="plain text")
    file: str = Field(default="", description="path of the file; the open one when left out")


class SearchFileTool(Tool[SearchFileArguments]):
    """``search_file SEARCH_TERM [FILE]``: list the lines of a file that hold a text."""

    name = "search_file"
    usage = "search_file SEARCH_TERM [FILE] - list the lines of FILE, or of the open file, that hold SEARCH_TERM"
    arguments_type = SearchFileArguments

    async def run(self, context: ToolContext, arguments: SearchFileArguments) -> Observation:
        """Search plain text."""
        path = repository_path(context, arguments.file) if arguments.file else open_file(context)[0].path
        term = arguments.search_term
        lines = read_text(context, path).split("\n")
        hits = [f"{number}:{line.rstrip()[:200]}" for number, line in enumerate(lines, 1) if term in line]
        shown = [*hits[:_MAX_HITS], f"({len(hits) - _MAX_HITS} more)"] if len(hits) > _MAX_HITS else hits
        return Observation(text="\n".join([f"{len(hits)} lines of {path} hold {term!r}", *shown]))
