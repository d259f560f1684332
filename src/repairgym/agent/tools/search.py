"""Tools that find files and text.

``search`` is compact; ``find_files`` and ``find_files_with_text`` are in paper A (appendix A.2), ``search_file`` in
paper B (appendix E).
"""

from fnmatch import fnmatchcase

from pydantic import Field

from repairgym.agent.tools.base import Observation, TextArguments, Tool, ToolContext, tool_error
from repairgym.agent.tools.editor import open_file, read_text, repository_path
from repairgym.records import Record

MAX_HITS = 8


class SearchTool(Tool[TextArguments]):
    """``search TEXT``: places where TEXT occurs in Python files, definitions first."""

    name = "search"
    usage = "search TEXT - list PATH:LINE of places with TEXT, definitions first"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Search plain text over the repository."""
        wanted = arguments.argument.strip()
        if not wanted:
            return tool_error(f"usage: {self.usage}")
        hits = [hit for path in context.workspace.paths() for hit in _hits_in(context, path, wanted)]
        hits.sort(key=lambda hit: (not hit[3].startswith((f"def {wanted}", f"class {wanted}")), hit[0], hit[1]))
        if not hits:
            return Observation(text="found 0")
        shown = [f"{path}:{number} {line[:60]}" for _, number, path, line in hits[:MAX_HITS]]
        return Observation(text="\n".join([f"found {len(hits)}", *shown]))


def _hits_in(context: ToolContext, path: str, wanted: str) -> list[tuple[bool, int, str, str]]:
    text = context.workspace.read(path)
    if not text or wanted not in text:
        return []
    is_test = "test" in path
    return [(is_test, number, path, line.strip()) for number, line in enumerate(text.splitlines(), 1) if wanted in line]


MAX_FILES = 60


class FindFilesArguments(Record):
    """Arguments of ``find_files``."""

    pattern: str = Field(description="with wildcards; compared with the name and with the whole path")
    folder: str = Field(default="", description="only below this folder")


class FindFilesTool(Tool[FindFilesArguments]):
    """``find_files``: paths that match a pattern."""

    name = "find_files"
    usage = "find_files PATTERN [FOLDER] - list files whose name or path matches PATTERN, such as *.toml"
    arguments_type = FindFilesArguments

    async def run(self, context: ToolContext, arguments: FindFilesArguments) -> Observation:
        """List the matching paths, sorted."""
        paths = matching_paths(context, arguments.pattern, arguments.folder)
        left_out = f"\n... and {len(paths) - MAX_FILES} more" if len(paths) > MAX_FILES else ""
        return Observation(text="\n".join([f"found {len(paths)}", *paths[:MAX_FILES]]) + left_out)


def matching_paths(context: ToolContext, pattern: str, folder: str) -> list[str]:
    """Return the paths below ``folder`` whose name or whole path matches ``pattern``."""
    prefix = f"{folder.removeprefix('./').strip('/')}/" if folder.strip("./") else ""
    return [
        path
        for path in context.workspace.paths("*")
        if path.startswith(prefix) and (fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern))
    ]


MAX_LINES = 40
MAX_LINE_CHARS = 160


class FindFilesWithTextArguments(Record):
    """Arguments of ``find_files_with_text``."""

    text: str = Field(description="plain text; upper and lower case are told apart")  # words: ok
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


_MAX_HITS = 100


class SearchFileArguments(Record):
    """A text and the file to search."""

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
