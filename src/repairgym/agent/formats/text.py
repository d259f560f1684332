"""Action formats of plain text: the compact line of small models, and paper B's fenced command.

A compact action is one line, the tool's name first. Paper B's answer (section 3.3, appendix E) reasons and has exactly
one fenced block with a command: the block opens with a line of three backticks and ``command`` and ends at the next
line of three backticks. A command whose first word is a tool calls it; any other is for the shell, where the pipeline
has one.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from repairgym.agent.formats.base import Action, ActionFormat, ParseError, Tools


class CompactFormat(ActionFormat):
    """``edit < => <= @12``."""

    name = "compact"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the line: its first word is the tool, the rest its argument."""
        line = text.strip("\n")
        name, _, argument = line.partition(" ")
        if name not in tools or "\n" in line:
            return self.incomplete(tools)
        return Action(name, argument)

    def write(self, action: Action, reasoning: str = "") -> str:
        """Return the line; there is no place for ``reasoning``."""
        if not action.arguments:
            return action.tool
        if not isinstance(action.arguments, str):
            raise TypeError("the compact format writes the arguments of a tool as one text")
        return f"{action.tool} {action.arguments}"

    def incomplete(self, tools: Tools) -> ParseError:
        """Return the one error for every malformed action, which small models learn."""
        return ParseError("error: one line, one of " + " ".join(sorted(tools)))


SHELL = "shell"
_BLOCK = re.compile(r"^```command[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_NO_COMMAND = (
    "error: no command could be read from your answer. Write your reasoning, then one command between a line "
    "```command and a line ```; nothing else may stand on these two lines."
)
_MANY_COMMANDS = (
    "error: your answer has {count} commands and none of them was run. Write exactly one ```command block per answer, "
    "read what it says, then go on."  # words: ok
)


class FencedFormat(ActionFormat):
    """Reasoning, then a command between fences."""

    name = "fenced"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the command of the only block."""
        blocks = _BLOCK.findall(text if text.endswith("\n") else f"{text}\n")
        if not blocks:
            return ParseError(_NO_COMMAND)
        if len(blocks) > 1:
            return ParseError(_MANY_COMMANDS.format(count=len(blocks)))
        command = blocks[0].strip("\n")
        name, rest = _first_word(command)
        if name in tools and name != SHELL:
            return Action(name, rest)
        return Action(SHELL, command) if SHELL in tools and command.strip() else ParseError(_NO_COMMAND)

    def describe(self, tools: Tools) -> str:
        """Return the tools; the shell needs no name."""
        return super().describe({name: tool for name, tool in tools.items() if name != SHELL})

    def write(self, action: Action, reasoning: str = "") -> str:
        """Return ``reasoning`` and the block; values become words in their order."""
        command = action.arguments if isinstance(action.arguments, str) else _as_words(action.arguments)
        line = command if action.tool == SHELL else " ".join(part for part in (action.tool, command) if part)
        return f"{reasoning or 'Next:'}\n\n```command\n{line}\n```"


def _first_word(command: str) -> tuple[str, str]:
    match = re.match(r"\s*(\S+)[ \t]?(.*)", command, re.DOTALL)
    return (match.group(1), match.group(2)) if match else ("", "")


def _as_words(values: Mapping[str, Any]) -> str:
    return " ".join(shlex.quote(str(value)) for value in values.values())
