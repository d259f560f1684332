"""Paper B's pipeline: a ReAct loop over a shell and a windowed editor, the full history in view (sections 3.1, 3.3).

Reads a task; leads one attempt whose submission is the diff of the working tree. With ``has_git`` the tree is a git
repository with one commit, which holds what the agent is given and nothing of the future.
"""

import difflib
import shlex
from collections.abc import Iterator
from typing import Any

from repairgym.agent.formats import Action
from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.editor import shown_path
from repairgym.agent.tools.repository import make_repository
from repairgym.agent.tools.window import render_view, view_around
from repairgym.config.pipeline import PaperBConfig
from repairgym.diffs.lines import split_lines
from repairgym.records import Location, Task
from repairgym.sandbox.base import Sandbox


class PaperBPipeline(Pipeline[PaperBConfig]):
    """One attempt with a shell and an editor."""

    @property
    def is_prepared(self) -> bool:
        """True when the tree becomes a git repository."""
        return self.config.has_git

    async def prepare(self, sandbox: Sandbox) -> None:
        """Make the tree a git repository; SandboxError where the sandbox has no git, or it failed."""
        await make_repository(sandbox)

    def open_place(self, context: ToolContext, place: Location, text: str) -> str:
        """Open the editor at the task's cached place, or, where the tools have no editor, the compact tools' window."""
        if "open" not in self.config.tools:
            return super().open_place(context, place, text)
        context.view = view_around(place.path, text, place.first_line, self.config.window_lines)
        return render_view(context.view, text, self.config.window_lines)

    def solve(self, task: Task) -> Iterator[Action]:
        """Open each file where it changes, from its end to its start, and replace the lines that differ."""
        for path, gold in task.gold_files.items():
            base = task.base_files.get(path)
            if gold is None:
                yield Action("shell", f"rm {shlex.quote(path)}")
            elif base is None:
                yield Action("create", shlex.quote(path))
                yield Action("edit", heredoc("1:1", gold))
            else:
                yield Action("open", shlex.quote(path))
                for first, last, replacement in changed_ranges(base, gold):
                    yield Action("edit", heredoc(f"{first}:{last}", replacement))

    def finish(self, context: ToolContext, text: str) -> str:
        """Return ``text`` with the state line below it: folder and open file."""
        return f"{text}\n{state_line(context)}"

    def prompt_values(self, context: ToolContext) -> dict[str, Any]:
        """Add ``state``, the line below each observation."""
        return {**super().prompt_values(context), "state": state_line(context)}


def state_line(context: ToolContext) -> str:
    """Return the line with the agent's folder and open file (paper B, appendix E)."""
    opened = context.view or context.window
    file = shown_path(opened.path) if opened else "n/a"
    return f"(Current directory: {context.workspace.cwd}, current file: {file}) bash-$"


def changed_ranges(base: str, gold: str) -> Iterator[tuple[int, int, str]]:
    """Yield (first line, last line, their new text) of each difference, from the end of the file to its start.

    Added lines include the line before or after them, because an edit replaces at least one line.
    """
    old, new = split_lines(base), split_lines(gold)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, last, new_first, new_last in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        if first == last and first > 0:
            first, new_first = first - 1, new_first - 1
        elif first == last:
            last, new_last = last + 1, new_last + 1
        yield first + 1, max(first + 1, last), "".join(new[new_first:new_last])


def heredoc(line_range: str, text: str) -> str:
    """Return the arguments of ``edit`` with ``text`` as a heredoc."""
    lines = text.removesuffix("\n").split("\n") if text else []
    end = "EOF"
    while end in lines:
        end += "_"
    return "\n".join([f"{line_range} << '{end}'", *lines, end])
