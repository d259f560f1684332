"""The windowed editor of paper B (appendix E): tools that open a file, move its window, change and search it.

Reads and writes whole files of the workspace; makes views of the open file. Guarantees: the editor opens text files of
the repository only, everything else is for the shell; a file that ended without a line feed still does, unless its last
line is replaced by nothing.
"""

import posixpath
import re
from typing import ClassVar, Generic

from pydantic import Field

from repairgym.agent.tools.base import (
    ArgumentsT,
    NoArguments,
    Observation,
    Tool,
    ToolContext,
    ToolServices,
    UsageError,
    split_words,
)
from repairgym.agent.tools.window import FileView, count_lines, render_view, view_around, view_from
from repairgym.diffs.lines import split_lines
from repairgym.records import Record

ROOT = "/testbed"
REVIEW = "File updated. Look at the lines below: is the indentation right, is nothing doubled? Edit again if needed."
_OVERLAP = 2
"""Lines that two windows share after scrolling."""
_MAX_HITS = 100
_HEREDOC = re.compile(r"<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[ \t]*\n(?P<rest>.*)", re.DOTALL)
_BEFORE_HEREDOC = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\<\n]|<(?!<))*""", re.DOTALL)
"""Quoted text and what is no ``<<``, within the first line."""
_RANGE = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")


class EditorTool(Tool[ArgumentsT], Generic[ArgumentsT]):
    """A tool that shows the open file in windows of ``num_lines`` lines."""

    def __init__(self, services: ToolServices) -> None:
        super().__init__(services)
        self.num_lines = services.config.window_lines

    def show(self, context: ToolContext, note: str = "") -> Observation:
        """Show the open window, behind ``note``."""
        view, text = open_file(context)
        shown = render_view(view, text, self.num_lines)
        return Observation(text=f"{note}\n{shown}" if note else shown)

    def look_at(self, context: ToolContext, path: str, line: int) -> None:
        """Open ``path`` around ``line``; `UsageError` if there is no such line."""
        text = read_text(context, path)
        num_lines = count_lines(text)
        if not 1 <= line <= max(1, num_lines):
            raise UsageError(f"got line {line}, but {path} has the lines 1 to {num_lines}")
        context.view = view_around(path, text, line, self.num_lines)


class OpenArguments(Record):
    """A file and a line."""

    file: str = Field(default="", description="path of the file; the one that is open when left out")
    line_number: int = Field(default=0, description="line to show in the middle; where the file was when left out")


class OpenTool(EditorTool[OpenArguments]):
    """``open [FILE] [LINE_NUMBER]``: show a file; without FILE, the last one again."""

    name = "open"
    usage = "open [FILE] [LINE_NUMBER] - open a file and show it around a line; without FILE show the last one again"

    def read(self, text: str) -> OpenArguments:
        """Read a single number as a line of the open file."""
        arguments = super().read(text)
        if re.fullmatch(r"\d{1,9}", arguments.file) and not arguments.line_number:
            return OpenArguments(line_number=int(arguments.file))
        return arguments

    async def run(self, context: ToolContext, arguments: OpenArguments) -> Observation:
        """Open the window."""
        if arguments.file or arguments.line_number:
            self.look_at(context, path_of(context, arguments.file), arguments.line_number or 1)
        return self.show(context)


class GotoArguments(Record):
    """The target line."""

    line_number: int = Field(description="line to show in the middle of the window")


class GotoTool(EditorTool[GotoArguments]):
    """``goto LINE_NUMBER``: move the window."""

    name = "goto"
    usage = "goto LINE_NUMBER - move the window of the open file to a line"

    async def run(self, context: ToolContext, arguments: GotoArguments) -> Observation:
        """Move the window."""
        self.look_at(context, open_file(context)[0].path, arguments.line_number)
        return self.show(context)


class ScrollDownTool(EditorTool[NoArguments]):
    """``scroll_down``: the next window."""

    name = "scroll_down"
    usage = "scroll_down - move the window down"
    direction: ClassVar[int] = 1

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Move the window."""
        view, text = open_file(context)
        first_line = view.first_line + self.direction * max(1, self.num_lines - _OVERLAP)
        moved = view_from(view.path, text, first_line, self.num_lines)
        if moved == view:
            raise UsageError(f"the window already shows the {'end' if self.direction > 0 else 'start'} of {view.path}")
        context.view = moved
        return self.show(context)


class ScrollUpTool(ScrollDownTool):
    """``scroll_up``: the window before."""

    name = "scroll_up"
    usage = "scroll_up - move the window up"
    direction = -1


class CreateArguments(Record):
    """The file to create."""

    file: str = Field(description="path of the new file")


class CreateTool(EditorTool[CreateArguments]):
    """``create FILENAME``: make a file of one empty line and open it."""

    name = "create"
    usage = "create FILENAME - create and open a new file"

    async def run(self, context: ToolContext, arguments: CreateArguments) -> Observation:
        """Create the file."""
        path = repository_path(context, arguments.file)
        if context.workspace.read(path) is not None:
            raise UsageError(f"{path} exists; open it")
        await context.workspace.write(path, "\n")
        context.view = FileView(path)
        return self.show(context, "File created.")


class EditArguments(Record):
    """The lines to replace and their new text."""

    line_range: str = Field(description="START:END, both included, of the lines to replace")
    replacement_text: str = Field(default="", description="the new lines, with their indentation; empty deletes")
    file: str = Field(default="", description="path of the file; the open one when left out")


class EditRangeTool(EditorTool[EditArguments]):
    """``edit [--file PATH] START:END [TEXT]``, or with a heredoc: replace lines."""

    name = "edit"
    usage = (
        "edit [--file PATH] LINE_RANGE [REPLACEMENT_TEXT] - replace the lines START:END (both included) of the open "
        "file or of PATH; write several lines as a heredoc: edit 3:5 << 'EOF', the lines, EOF"
    )

    def read(self, text: str) -> EditArguments:
        """Read options and, behind them, the range as words; the text as the last word or as a heredoc."""
        head, body = split_heredoc(text)
        words = split_words(head)
        file = take_option(words, "--file")
        if not words:
            raise UsageError("got no line range")
        rest = words[1:] if body is None else [*words[1:], body]
        if len(rest) > 1:
            raise UsageError(f"got {len(rest)} replacement texts; quote it, or write it as a heredoc")
        return EditArguments(line_range=words[0], replacement_text="".join(rest), file=file or "")

    async def run(self, context: ToolContext, arguments: EditArguments) -> Observation:
        """Replace the lines and show the result."""
        path = path_of(context, arguments.file)
        text = read_text(context, path)
        first, last = _parse_range(arguments.line_range, count_lines(text))
        changed = replace_lines(text, first, last, arguments.replacement_text)
        await context.workspace.write(path, changed)
        num_new = count_lines(arguments.replacement_text)
        context.view = view_around(path, changed, first + num_new // 2, self.num_lines)
        return self.show(context, REVIEW)


class ReplaceArguments(Record):
    """The text to replace and its replacement."""

    search: str = Field(description="text to look for, exactly as it stands in the open file; may have several lines")
    replacement: str = Field(description="text to put there")
    replace_all: bool = Field(default=False, description="replace every occurrence, not only the first")


class ReplaceTool(EditorTool[ReplaceArguments]):
    """``replace [--replace-all] SEARCH REPLACE``: replace text in the open file."""

    name = "replace"
    usage = "replace [--replace-all] SEARCH REPLACE - replace text in the open file, the first occurrence or all"

    def read(self, text: str) -> ReplaceArguments:
        """Read two words, quoted as in a shell; `UsageError` if there are not two."""
        words = split_words(text)
        is_all = "--replace-all" in words[:1]
        words = words[1:] if is_all else words
        if len(words) != 2:
            raise UsageError(f"got {len(words)} texts, expected two; quote each")
        return ReplaceArguments(search=words[0], replacement=words[1], replace_all=is_all)

    async def run(self, context: ToolContext, arguments: ReplaceArguments) -> Observation:
        """Replace the text and show the first place."""
        view, text = open_file(context)
        count = text.count(arguments.search) if arguments.search else 0
        if not count:
            raise UsageError(f"the text is not in {view.path}")
        changed = text.replace(arguments.search, arguments.replacement, -1 if arguments.replace_all else 1)
        await context.workspace.write(view.path, changed)
        line = text[: text.index(arguments.search)].count("\n") + 1
        context.view = view_around(view.path, changed, line, self.num_lines)
        num_replaced = count if arguments.replace_all else 1
        return self.show(context, f"{REVIEW}\n({num_replaced} of {count} occurrences replaced)")


class SearchFileArguments(Record):
    """A text and the file to search."""

    search_term: str = Field(description="plain text")
    file: str = Field(default="", description="path of the file; the open one when left out")


class SearchFileTool(Tool[SearchFileArguments]):
    """``search_file SEARCH_TERM [FILE]``: list the lines of a file that hold a text."""

    name = "search_file"
    usage = "search_file SEARCH_TERM [FILE] - list the lines of FILE, or of the open file, that hold SEARCH_TERM"

    async def run(self, context: ToolContext, arguments: SearchFileArguments) -> Observation:
        """Search plain text."""
        path = path_of(context, arguments.file)
        term = arguments.search_term
        lines = read_text(context, path).split("\n")
        hits = [f"{number}:{line.rstrip()[:200]}" for number, line in enumerate(lines, 1) if term in line]
        shown = [*hits[:_MAX_HITS], f"({len(hits) - _MAX_HITS} more)"] if len(hits) > _MAX_HITS else hits
        return Observation(text="\n".join([f"{len(hits)} lines of {path} hold {term!r}", *shown]))


# --- files and paths -----------------------------------------------------------------------------------------------


def open_file(context: ToolContext) -> tuple[FileView, str]:
    """Return the view and the text of the open file; `UsageError` if no file is open, or it is gone."""
    if context.view is None:
        raise UsageError("no file is open; open one first")
    return context.view, read_text(context, context.view.path)


def read_text(context: ToolContext, path: str) -> str:
    """Return the text of a file; `UsageError` if there is none, or it is no text."""
    text = context.workspace.read(path)
    if text is None:
        raise UsageError(f"{path} is no text file of the repository")
    return text


def repository_path(context: ToolContext, path: str) -> str:
    """Return a path below the shell's folder as one below the repository root; `UsageError` if it leads out."""
    full = posixpath.normpath(posixpath.join(context.workspace.cwd, path))
    if not full.startswith(f"{ROOT}/"):
        raise UsageError(f"{path} is outside the repository ({ROOT}), where only the shell reads and writes")
    return full.removeprefix(f"{ROOT}/")


def path_of(context: ToolContext, file: str) -> str:
    """Return the path of ``file`` relative to the repository root; of the open file when ``file`` is empty."""
    return repository_path(context, file) if file else open_file(context)[0].path


def shown_path(path: str) -> str:
    """Return a path relative to the repository root as the agent sees it."""
    return f"{ROOT}/{path}"


# --- commands ------------------------------------------------------------------------------------------------------


def split_heredoc(text: str) -> tuple[str, str | None]:
    """Return the text before a heredoc, and its body or None; `UsageError` if it does not end, or not at the end."""
    before = _BEFORE_HEREDOC.match(text)
    head = before[0] if before else ""
    match = _HEREDOC.match(text, len(head))
    if match is None:
        return text, None
    end = match["end"]
    lines = match["rest"].split("\n")
    if end not in lines:
        raise UsageError(f"the heredoc has no line {end} at its end")
    index = lines.index(end)
    if any(line.strip() for line in lines[index + 1 :]):
        raise UsageError(f"something follows the line {end}; a command block has one command")
    return head, "".join(f"{line}\n" for line in lines[:index])


def take_option(words: list[str], name: str) -> str | None:
    """Take ``name VALUE`` or ``name=VALUE`` from the start of ``words``; what stands behind other words is no option.

    Raises:
        UsageError: it is another option, one without a value, or given twice.
    """
    value = None
    while words and words[0].startswith("--"):
        key, separator, given = words.pop(0).partition("=")
        if key != name:
            raise UsageError(f"there is no option {key}")
        if value is not None:
            raise UsageError(f"{name} is given twice")
        if not separator and not words:
            raise UsageError(f"{name} needs a value")
        value = given if separator else words.pop(0)
    return value


def replace_lines(text: str, first: int, last: int, replacement: str) -> str:
    """Return ``text`` with its lines ``first`` to ``last`` (from 1, both included) replaced."""
    lines = split_lines(text)
    new = [line if line.endswith("\n") else f"{line}\n" for line in split_lines(replacement)]
    changed = "".join([*lines[: first - 1], *new, *lines[last:]])
    is_open_ended = bool(text) and not text.endswith("\n") and last >= len(lines) and bool(new)
    return changed.removesuffix("\n") if is_open_ended else changed


def _parse_range(written: str, num_lines: int) -> tuple[int, int]:
    match = _RANGE.fullmatch(written.strip())
    if match is None:
        raise UsageError(f"got the line range {written!r}, expected START:END")
    first = int(match[1])
    last = int(match[2] or first)
    if not 1 <= first <= last <= max(1, num_lines):
        raise UsageError(f"got the lines {first} to {last}, but the file has the lines 1 to {num_lines}")
    return first, last
