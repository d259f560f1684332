"""The windowed editor of paper B (appendix E): the open file, and paths as the agent writes them.

Reads the workspace and the working folder of the shell; makes paths relative to the repository root. Guarantee: the
editor opens text files of the repository only; everything else is for the shell.
"""

import posixpath
from typing import Generic, Self

from repairgym.agent.tools.base import ArgumentsT, Observation, Tool, ToolContext, ToolServices, UsageError
from repairgym.agent.tools.window import FileView, count_lines, render_view, view_around

ROOT = "/testbed"


class EditorTool(Tool[ArgumentsT], Generic[ArgumentsT]):
    """A tool that shows the open file in windows of ``num_lines`` lines."""

    def __init__(self, num_lines: int) -> None:
        """Show windows of ``num_lines`` lines."""
        self.num_lines = num_lines

    @classmethod
    def create(cls, services: ToolServices) -> Self:
        """Use the window of the pipeline."""
        return cls(services.config.window_lines)

    def show(self, context: ToolContext, note: str = "") -> Observation:
        """Show the open window, behind ``note``."""
        view, text = open_file(context)
        shown = render_view(view, text, self.num_lines)
        return Observation(text=f"{note}\n{shown}" if note else shown)

    def look_at(self, context: ToolContext, path: str, line: int) -> None:
        """Open ``path`` around ``line``.

        Raises:
            UsageError: there is no such line.
        """
        text = read_text(context, path)
        num_lines = count_lines(text)
        if not 1 <= line <= max(1, num_lines):
            raise UsageError(f"got line {line}, but {path} has the lines 1 to {num_lines}")
        context.view = view_around(path, text, line, self.num_lines)


def open_file(context: ToolContext) -> tuple[FileView, str]:
    """Return the view and the text of the open file.

    Raises:
        UsageError: no file is open, or it is gone.
    """
    if context.view is None:
        raise UsageError("no file is open; open one first")
    return context.view, read_text(context, context.view.path)


def read_text(context: ToolContext, path: str) -> str:
    """Return the text of a file.

    Raises:
        UsageError: there is none, or it is no text.
    """
    text = context.workspace.read(path)
    if text is None:
        raise UsageError(f"{path} is no text file of the repository")
    return text


def repository_path(context: ToolContext, path: str) -> str:
    """Return ``path``, relative to the agent's working folder, as a path relative to the repository root.

    Raises:
        UsageError: it is outside of the repository.
    """
    full = posixpath.normpath(posixpath.join(context.workspace.cwd, path))
    if not full.startswith(f"{ROOT}/"):
        raise UsageError(f"{path} is outside the repository ({ROOT}), where only the shell reads and writes")
    return full.removeprefix(f"{ROOT}/")


def shown_path(path: str) -> str:
    """Return a path relative to the repository root as the agent sees it."""
    return f"{ROOT}/{path}"
