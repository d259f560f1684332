"""The ``find_files`` tool of paper A (appendix A.2): files by name."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext
from repairgym.records import Record

MAX_FILES = 60


class FindFilesArguments(Record):
    """What ``find_files`` takes."""

    pattern: str = Field(description="with wildcards; compared with the name and with the whole path")
    folder: str = Field(default="", description="only below this folder")


class FindFilesTool(Tool[FindFilesArguments]):
    """``find_files``: paths that match a pattern."""

    name = "find_files"
    usage = "find_files PATTERN [FOLDER] - list files whose name or path matches PATTERN, such as *.toml"
    arguments_type = FindFilesArguments

    async def run(self, context: ToolContext, arguments: FindFilesArguments) -> Observation:
        """List the matching paths, sorted."""
        found = matching_paths(context, arguments.pattern, arguments.folder)
        left_out = f"\n... and {len(found) - MAX_FILES} more" if len(found) > MAX_FILES else ""
        return Observation(text="\n".join([f"found {len(found)}", *found[:MAX_FILES]]) + left_out)


def matching_paths(context: ToolContext, pattern: str, folder: str) -> list[str]:
    """Paths below ``folder`` whose name or whole path matches ``pattern``."""
    prefix = f"{folder.removeprefix('./').strip('/')}/" if folder.strip("./") else ""
    return [
        path
        for path in context.workspace.paths("*")
        if path.startswith(prefix) and (fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern))
    ]
