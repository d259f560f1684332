"""The compact action format: one line, the tool's name first.

Reads the text of an action; makes an `Action` or an environment-format error that shows the format. Other formats
(fenced command, JSON in XML, native tool calls) implement the same two functions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """A parsed action."""

    tool: str
    argument: str


def parse_action(text: str, tool_names: frozenset[str]) -> Action | None:
    """Parse one action; None is an environment-format error (paper B, appendix E)."""
    line = text.strip("\n")
    name, _, argument = line.partition(" ")
    if name not in tool_names or "\n" in line:
        return None
    return Action(name, argument)


def format_error(tool_names: frozenset[str]) -> str:
    """The observation that answers a malformed action."""
    return "error: one line, one of " + " ".join(sorted(tool_names))
