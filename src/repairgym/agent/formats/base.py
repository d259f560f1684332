"""Action formats: parsing the text of a completion into an action, and writing the environment's reply.

Reads the text of a completion (without its thought); makes an `Action`, or a `ParseError` whose message the agent
reads. Guarantees: no text of a model raises an exception; `parse(write(action))` is the action; a turn has exactly one
action, because paper B's environment rejects more and the record has one tool per turn.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from repairgym.agent.tools.base import Tool

Tools = Mapping[str, Tool[Any]]
"""By the names that the agent writes."""


@dataclass(frozen=True)
class Action:
    """One call of a tool."""

    tool: str
    arguments: str | Mapping[str, Any]
    """The text behind the tool's name (text formats), or the values of its arguments (JSON formats)."""

    @property
    def values(self) -> dict[str, Any]:
        """Arguments as a turn records them."""
        return {"argument": self.arguments} if isinstance(self.arguments, str) else dict(self.arguments)


@dataclass(frozen=True)
class ParseError:
    """A completion without exactly one readable action: an environment-format error (paper B, appendix E)."""

    message: str


class ActionFormat(ABC):
    """One way to write actions."""

    name: ClassVar[str]

    @abstractmethod
    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Return the one action of a completion."""

    @abstractmethod
    def write(self, action: Action, reasoning: str = "") -> str:
        """Return a completion with ``action``, as scripted policies and demonstrations write it."""

    def incomplete(self, tools: Tools) -> ParseError:
        """Return the error for a completion that was cut off."""
        return ParseError("error: your answer was cut off before it ended; write a shorter one with one action")

    def message(self, observation: str, action: Action | None) -> str:
        """Return the next message of the environment; ``action`` is None after a `ParseError`."""
        return observation

    def describe(self, tools: Tools) -> str:
        """Return the tools as text for a system prompt."""
        return "\n".join(f"- {tool.usage}" for tool in tools.values())


def describe_schemas(tools: Tools) -> list[dict[str, Any]]:
    """Return the tools as functions of a chat API: name, description, JSON schema of the arguments."""
    return [{"type": "function", "function": _function(tool)} for tool in tools.values()]


def _function(tool: Tool[Any]) -> dict[str, Any]:
    schema = tool.arguments_type.model_json_schema()
    properties = {key: _without_title(value) for key, value in schema.get("properties", {}).items()}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := schema.get("required"):
        parameters["required"] = required
    description = tool.usage.partition(" - ")[2] or tool.usage
    return {"name": tool.name, "description": description, "parameters": parameters}


def _without_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}


def read_json(text: str, start: int) -> tuple[Any, int] | str:
    """Return (value, end) of the JSON at ``start``, or a description of its error."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        # strict=False: models write line feeds inside of strings and mean them.
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    except json.JSONDecodeError as error:
        return f"{error.msg.lower()} at character {error.pos - start}"
    except RecursionError:
        return "too deeply nested"
