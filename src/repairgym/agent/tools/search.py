"""Tools that look: ``view`` opens a window, ``search`` finds text."""

from __future__ import annotations

import re

from repairgym.agent.tools.base import Observation, TextArguments, Tool, ToolContext, tool_error
from repairgym.agent.tools.window import open_window

MAX_HITS = 8
_TARGET = re.compile(r"(\S+?)(?::(\d+))?")


class ViewTool(Tool[TextArguments]):
    """``view [PATH[:LINE]]``: show a window of a file; without PATH, the open window again."""

    name = "view"
    usage = "view [PATH[:LINE]] - show a file from LINE on; without PATH the open window again"

    async def run(self, context: ToolContext, arguments: TextArguments) -> Observation:
        """Open or show again a window."""
        wanted = arguments.argument.strip()
        if not wanted:
            if context.window is None:
                return tool_error("no file is open; use view PATH")
            return Observation(text=context.window.render(context.workspace.read(context.window.path) or ""))
        match = _TARGET.fullmatch(wanted)
        path, line = (match.group(1), int(match.group(2) or 1)) if match else (wanted, 1)
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; search TEXT lists places")
        window = open_window(path, text, line)
        if not window.line_numbers:
            return tool_error(f"{path} has no line {line}; it ends at {len(text.splitlines())}")
        context.window = window
        return Observation(text=f"{path}:{window.line_numbers[0]}\n{window.render(text)}")


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
