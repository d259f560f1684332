"""Action formats: parsing the text of a completion into an action, and writing the environment's reply.

Reads the text of a completion (without its thought); makes an `Action`, or a `ParseError` whose message the agent
reads. Guarantees: no text of a model raises an exception; `parse(write(action))` is the action, or `write` raises an
`InputError` because the format cannot hold it; a turn has exactly one action, because paper B's environment rejects
more and the record has one tool per turn. A new format is a class and an entry of `FORMATS` (docs/howto/pipeline.md).
"""

import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from repairgym.agent.tools.base import Tool
from repairgym.errors import InputError
from repairgym.inference.tool_calls import HERMES, Call, CallForm, find, read_tagged

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
    is_native: ClassVar[bool] = False
    """The chat template describes the tools and writes their results."""

    def __init__(self, form: CallForm = HERMES) -> None:
        """``form``: that of the model's own tool calls."""
        self._form = form

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
    schema = tool.schema()
    described = {name: _property(value) for name, value in (schema.get("properties") or {}).items()}
    parameters: dict[str, Any] = {"type": "object", "properties": described}
    # What a $ref of a property leads to.
    parameters |= {name: schema[name] for name in ("$defs", "definitions") if schema.get(name)}
    if required := schema.get("required"):
        parameters["required"] = required
    description = tool.usage.partition(" - ")[2] or tool.usage
    return {"name": tool.name, "description": description, "parameters": parameters}


def _property(value: Any) -> Any:
    """Return the schema of one argument without its title; ``true`` is the schema that takes anything."""
    if isinstance(value, Mapping):
        return {name: part for name, part in value.items() if name != "title"}
    return {} if value is True else value


# --- plain text ----------------------------------------------------------------------------------------------------


class CompactFormat(ActionFormat):
    """One line of small models, the tool's name first: ``edit < => <= @12``."""

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
_OPENING = re.compile(r"```command[ \t]*")
_CLOSING = re.compile(r"```[ \t]*")
_HEREDOC = re.compile(
    r"""(?<!<)<<(?P<dash>-?)[ \t]*(?:(?P<quote>['"])(?P<quoted>[^'"\n]+)(?P=quote)|\\?(?P<plain>[A-Za-z_][\w.-]*))"""
)
_NO_COMMAND = (
    "error: no command could be read from your answer. Write your reasoning, then one command between a line "
    "```command and a line ```; nothing else may stand on these two lines."
)
_MANY_COMMANDS = (
    "error: your answer has {count} commands and none of them was run. Write exactly one ```command block per answer, "
    "read what it says, then go on."  # words: ok
)


class FencedFormat(ActionFormat):
    """Reasoning, then paper B's command between fences (section 3.3, appendix E).

    The block opens with a line of three backticks and ``command`` and ends at the next line of three backticks that is
    in no here-document of the command. A command whose first word is a tool calls it; any other is for the shell, where
    the pipeline has one.
    """

    name = "fenced"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the command of the only block."""
        blocks = _blocks(text)
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
        """Return ``reasoning`` and the block; values become words in their order.

        Raises:
            InputError: the command has a line of three backticks that would end the block.
        """
        command = action.arguments if isinstance(action.arguments, str) else _as_words(action.arguments)
        line = command if action.tool == SHELL else " ".join(part for part in (action.tool, command) if part)
        text = f"{reasoning or 'Next:'}\n\n```command\n{line}\n```"
        if [block.strip("\n") for block in _blocks(text)] != [line.strip("\n")]:
            raise InputError(f"a line of backticks would end the command: {line[:60]!r}; write it as a here-document")
        return text


def _blocks(text: str) -> list[str]:
    """Return the texts between the fences of commands."""
    lines, blocks, at = text.split("\n"), [], 0
    while at < len(lines):
        at += 1
        if not _OPENING.fullmatch(lines[at - 1]):
            continue
        end = _end_of_block(lines, at)
        if end is None:
            break
        blocks.append("".join(f"{line}\n" for line in lines[at:end]))
        at = end + 1
    return blocks


def _end_of_block(lines: Sequence[str], at: int) -> int | None:
    while at < len(lines):
        if _CLOSING.fullmatch(lines[at]):
            return at
        for match in _HEREDOC.finditer(lines[at]):
            at = _end_of_heredoc(lines, at + 1, match) or at
        at += 1
    return None


def _end_of_heredoc(lines: Sequence[str], at: int, match: re.Match[str]) -> int | None:
    """Return the line that ends a here-document; None where none does before the next command: it may be a shift."""
    end = match["quoted"] or match["plain"]
    while at < len(lines) and not _OPENING.fullmatch(lines[at]):
        if (lines[at].lstrip("\t") if match["dash"] else lines[at]) == end:
            return at
        at += 1
    return None


def _first_word(command: str) -> tuple[str, str]:
    match = re.match(r"\s*(\S+)[ \t]?(.*)", command, re.DOTALL)
    return (match.group(1), match.group(2)) if match else ("", "")


def _as_words(values: Mapping[str, Any]) -> str:
    return " ".join(shlex.quote(str(value)) for value in values.values())


# --- JSON tool calls -----------------------------------------------------------------------------------------------

_NO_CALL = (
    'error: no tool call could be read from your answer. Write one as <NAME>{"argument": "value"}</NAME>, where NAME '
    "is one of "
)


class JsonXmlFormat(ActionFormat):
    """Paper A's ``<NAME>{json}</NAME>``.

    The paper (appendix A.2) puts JSON inside of XML tags and shows no call; the names of its tokens
    (``run_sh_response``) say that tags carry the tool's name, so ``<run_sh>{"command": "ls"}</run_sh>`` is a call and
    ``<run_sh_response>...</run_sh_response>`` the reply.
    """

    name = "json_xml"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the only call; the text around it is reasoning."""

        def read(match: re.Match[str]) -> tuple[Call, int] | str:
            name = match[1]
            tagged = read_tagged(text, match.end(), name)
            if isinstance(tagged, str):
                return f"<{name}>: {tagged}"
            value, end = tagged
            return (Call(name, value), end) if isinstance(value, dict) else f"<{name}>: the JSON is no object"

        calls, problem = find(text, "<(" + "|".join(map(re.escape, tools)) + ")>", read)
        if len(calls) == 1:
            return Action(*calls[0])
        return _many_calls(calls) if calls else ParseError(_NO_CALL + ", ".join(sorted(tools)) + problem)

    def write(self, action: Action, reasoning: str = "") -> str:
        """Return ``reasoning`` and the call."""
        call = f"<{action.tool}>{json.dumps(action.values, ensure_ascii=False)}</{action.tool}>"
        return f"{reasoning}\n{call}" if reasoning else call

    def message(self, observation: str, action: Action | None) -> str:
        """Return the observation between the response tags of its tool."""
        if action is None:
            return observation
        return f"<{action.tool}_response>\n{observation}\n</{action.tool}_response>"

    def describe(self, tools: Tools) -> str:
        """Return each tool with the JSON schema of its arguments."""
        functions = [schema["function"] for schema in describe_schemas(tools)]
        return "\n".join(
            f"<{function['name']}>: {function['description']}\n  arguments: {json.dumps(function['parameters'])}"
            for function in functions
        )


class NativeFormat(ActionFormat):
    """The form of calls that the model's own chat template writes (`inference/tool_calls`); results are tool messages.

    Chat servers turn calls into ``tool_calls`` of the message. The text is the record, so a structured message is
    written back in that form (`text_of_message`) and vice versa (`message_of_text`).
    """

    name = "native"
    is_native = True

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the only call; the text around it is reasoning."""
        calls, problem = self._form.find(text)
        if len(calls) > 1:
            return _many_calls(calls)
        if not calls:
            example = self._form.example
            return ParseError(f"error: no tool call could be read from your answer{problem}; write {example}")
        name, arguments = calls[0]
        if name not in tools:
            return ParseError(f"error: there is no tool {name!r}; there are {', '.join(sorted(tools))}")
        return Action(name, arguments if self._form.has_typed_values else _typed(arguments, tools[name]))

    def write(self, action: Action, reasoning: str = "") -> str:
        """Return ``reasoning`` and the call; `InputError` if it would be read as another one."""
        return f"{reasoning}\n{self._form.write_exactly(Call(action.tool, action.values))}".lstrip("\n")

    def describe(self, tools: Tools) -> str:
        """Return the rule alone: the chat template describes the functions."""
        return "They are described as functions. Call one per answer."


def _typed(values: Mapping[str, Any], tool: Tool[Any]) -> dict[str, Any]:
    """Read values that came as text: those of arguments that are no text are JSON."""
    typed = dict(values)
    for name, value in values.items():
        if isinstance(value, str) and not tool.is_text(name):
            with suppress(ValueError, RecursionError):
                typed[name] = json.loads(value)
    return typed


def _many_calls(calls: Sequence[Call] | Sequence[Action]) -> ParseError:
    return ParseError(f"error: your answer has {len(calls)} tool calls and none was made; make one at a time")


def text_of_message(message: Mapping[str, Any], form: CallForm = HERMES) -> str:
    """Return the text form of a chat API's message with ``tool_calls`` (their arguments a JSON string or an object).

    It is for prompts: a value with a tag of ``form`` stands there as the model's chat template would write it.
    """
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        values = call["function"].get("arguments") or {}
        if isinstance(values, str):
            with suppress(ValueError, RecursionError):
                values = json.loads(values, strict=False)
        # What is no object in an earlier answer stays readable.
        arguments = values if isinstance(values, dict) else {"arguments": values}
        parts.append(form.write(Call(call["function"]["name"], arguments)))
    return "\n".join(part for part in parts if part)


def message_of_text(text: str, call_ids: Sequence[str] = (), form: CallForm = HERMES) -> dict[str, Any]:
    """Return the structured form of a completion: ``content`` before the first call, its calls as ``tool_calls``."""
    calls, _ = form.find(text)
    if not calls:
        return {"role": "assistant", "content": text}
    ids = [*call_ids, *(f"call_{index}" for index in range(len(call_ids), len(calls)))]
    start = re.search(form.opening, text)
    return {
        "role": "assistant",
        "content": text[: start.start() if start else 0].strip() or None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call_id, call in zip(ids, calls, strict=True)
        ],
    }


FORMATS: dict[str, type[ActionFormat]] = {
    action_format.name: action_format for action_format in (CompactFormat, FencedFormat, JsonXmlFormat, NativeFormat)
}
"""By the names of `PipelineConfig.action_format`."""
