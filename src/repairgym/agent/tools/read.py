"""Tools that show files and find text.

``view`` and ``search`` are compact; ``read_file``, ``find_files`` and ``find_files_with_text`` are in paper A (appendix
A.2).
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import Field, PositiveInt

from repairgym.agent.tools.base import Observation, TextArguments, Tool, ToolContext, tool_error
from repairgym.agent.tools.edit import NO_WINDOW
from repairgym.agent.tools.window import open_window
from repairgym.diffs.lines import source_lines
from repairgym.records import Record

MAX_CHARS = 30_000
MAX_HITS = 8
MAX_FILES = 60
MAX_LINES = 40
MAX_LINE_CHARS = 160
_TARGET = re.compile(r"(\S+?)(?::(\d{1,9}))?")


class ViewTool(Tool[TextArguments]):
    """``view [PATH[:LINE]]``: show a window of a file; without PATH, the open window again."""

    name = "view"
    usage = "view [PATH[:LINE]] - show a file from LINE on; without PATH the open window again"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Open a window or show it again."""
        wanted = arguments.argument.strip()
        if not wanted:
            if context.window is None:
                return tool_error(NO_WINDOW)
            return Observation(text=context.window.render(context.workspace.read(context.window.path) or ""))
        match = _TARGET.fullmatch(wanted)
        path, line = (match.group(1), int(match.group(2) or 1)) if match else (wanted, 1)
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; search TEXT lists places")
        window = open_window(path, text, line)
        if not window.line_numbers:
            return tool_error(f"{path} has no line {line}; it ends at {len(source_lines(text))}")
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

    async def run(self, context: ToolContext, arguments: ReadFileArguments) -> Observation:
        """Print the lines as they are, so that they can be written back."""
        path = arguments.path.removeprefix("./")
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; find_files lists the files")
        lines = source_lines(text, keepends=True)
        if arguments.first_line > max(1, len(lines)):
            return tool_error(f"{path} has {len(lines)} lines, first_line is {arguments.first_line}")
        shown = "".join(lines[arguments.first_line - 1 : arguments.last_line])
        num_more = len(shown) - MAX_CHARS
        left_out = f"\n... {num_more} characters more; ask for fewer lines" if num_more > 0 else ""
        return Observation(text=shown[:MAX_CHARS] + left_out)


class SearchTool(Tool[TextArguments]):
    """``search TEXT``: places where TEXT occurs in Python files, definitions first."""

    name = "search"
    usage = "search TEXT - list PATH:LINE of places with TEXT, definitions first"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Search plain text over the repository."""
        wanted = arguments.argument.strip()
        if not wanted:
            return tool_error(f"usage: {self.usage}")
        hits = _lines_with(context, wanted, context.workspace.paths())
        definitions = (f"def {wanted}", f"class {wanted}")
        hits.sort(key=lambda hit: (not hit[2].startswith(definitions), "test" in hit[0], hit[1]))
        shown = [f"{path}:{number} {line[:60]}" for path, number, line in hits[:MAX_HITS]]
        return Observation(text="\n".join([f"found {len(hits)}", *shown]))


class FindFilesArguments(Record):
    """Arguments of ``find_files``."""

    pattern: str = Field(description="with wildcards; compared with the name and with the whole path")
    folder: str = Field(default="", description="only below this folder")


class FindFilesTool(Tool[FindFilesArguments]):
    """``find_files``: paths that match a pattern."""

    name = "find_files"
    usage = "find_files PATTERN [FOLDER] - list files whose name or path matches PATTERN, such as *.toml"

    async def run(self, context: ToolContext, arguments: FindFilesArguments) -> Observation:
        """List the matching paths, sorted."""
        return _listed(_matching_paths(context, arguments.pattern, arguments.folder), MAX_FILES)


class FindFilesWithTextArguments(Record):
    """Arguments of ``find_files_with_text``."""

    text: str = Field(description="plain text; upper and lower case are told apart")  # words: ok
    pattern: str = Field(default="*", description="only in files whose name or path matches it")
    folder: str = Field(default="", description="only below this folder")


class FindFilesWithTextTool(Tool[FindFilesWithTextArguments]):
    """``find_files_with_text``: PATH:LINE of every place."""

    name = "find_files_with_text"
    usage = "find_files_with_text TEXT [PATTERN] [FOLDER] - list PATH:LINE of the lines that contain TEXT"

    async def run(self, context: ToolContext, arguments: FindFilesWithTextArguments) -> Observation:
        """Search the text files that match the pattern."""
        if not arguments.text:
            return tool_error(f"text is empty; usage: {self.usage}")
        paths = _matching_paths(context, arguments.pattern, arguments.folder)
        hits = _lines_with(context, arguments.text, paths)
        return _listed([f"{path}:{number} {line[:MAX_LINE_CHARS]}" for path, number, line in hits], MAX_LINES)


def _matching_paths(context: ToolContext, pattern: str, folder: str) -> list[str]:
    """Return the paths below ``folder`` whose name or whole path matches ``pattern``."""
    prefix = f"{folder.removeprefix('./').strip('/')}/" if folder.strip("./") else ""
    return [
        path
        for path in context.workspace.paths("*")
        if path.startswith(prefix) and (fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern))
    ]


def _lines_with(context: ToolContext, wanted: str, paths: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return (path, number, stripped line) of the lines that contain ``wanted``."""
    return [
        (path, number, line.strip())
        for path in paths
        for number, line in enumerate(source_lines(context.workspace.read(path) or ""), 1)
        if wanted in line
    ]


def _listed(lines: Sequence[str], max_lines: int) -> Observation:
    left_out = [f"... and {len(lines) - max_lines} more"] if len(lines) > max_lines else []
    return Observation(text="\n".join([f"found {len(lines)}", *lines[:max_lines], *left_out]))
