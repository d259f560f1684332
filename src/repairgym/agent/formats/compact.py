"""The compact action format of small models: one line, the tool's name first."""

from __future__ import annotations

from repairgym.agent.formats.base import Action, ActionFormat, ParseError, Tools


class CompactFormat(ActionFormat):
    """``edit < => <= @12``."""

    name = "compact"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """The line's first word is the tool, the rest its argument."""
        line = text.strip("\n")
        name, _, argument = line.partition(" ")
        if name not in tools or "\n" in line:
            return self.incomplete(tools)
        return Action(name, argument)

    def write(self, action: Action, reasoning: str = "") -> str:
        """The line; there is no place for ``reasoning``."""
        if not action.arguments:
            return action.tool
        if not isinstance(action.arguments, str):
            raise TypeError("the compact format writes the arguments of a tool as one text")
        return f"{action.tool} {action.arguments}"

    def incomplete(self, tools: Tools) -> ParseError:
        """Small models learn one answer to every malformed action."""
        return ParseError("error: one line, one of " + " ".join(sorted(tools)))
