"""Action formats of JSON tool calls: paper A's tags, and the native calls of models with tool training.

Paper A (appendix A.2) puts JSON inside of XML tags. It shows no example of a call; the names of its tokens
(``run_sh_response``) say that tags carry the tool's name, so ``<run_sh>{"command": "ls"}</run_sh>`` is a call and
``<run_sh_response>...</run_sh_response>`` the reply. Models in the Hermes and Qwen form write
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` and read ``<tool_response>``; chat servers turn the first
into ``tool_calls`` of the message. The text is the record, so a structured message is written back in that form
(`text_of_message`) and vice versa (`message_of_text`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.agent.formats.base import Action, ActionFormat, ParseError, Tools, describe_schemas, read_json

_NO_CALL = (
    'error: no tool call could be read from your answer. Write one as <NAME>{"argument": "value"}</NAME>, where NAME '
    "is one of "
)


class JsonXmlFormat(ActionFormat):
    """``<NAME>{json}</NAME>``."""

    name = "json_xml"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the only call; the text around it is reasoning."""
        calls: list[Action] = []
        problem = ""
        position = 0
        opening = re.compile("<(" + "|".join(map(re.escape, tools)) + ")>")
        while match := opening.search(text, position):
            name = match.group(1)
            call = _read_tagged_call(text, match.end(), name)
            if isinstance(call, str):
                problem, position = problem or f" (<{name}>: {call})", match.end()
            else:
                calls.append(call[0])
                position = call[1]
        if len(calls) == 1:
            return calls[0]
        if calls:
            return ParseError(f"error: your answer has {len(calls)} tool calls and none was made; make one at a time")
        return ParseError(_NO_CALL + ", ".join(sorted(tools)) + problem)

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


def _read_tagged_call(text: str, start: int, name: str) -> tuple[Action, int] | str:
    parsed = read_json(text, start)
    if isinstance(parsed, str):
        return parsed
    value, end = parsed
    closing = re.compile(rf"\s*</{re.escape(name)}>").match(text, end)
    if closing is None:
        return f"no </{name}> behind the JSON"
    if not isinstance(value, dict):
        return "the JSON is no object"
    return Action(name, value), closing.end()


_OPEN = "<tool_call>"
_CLOSE = re.compile(r"\s*</tool_call>")
_EXAMPLE = '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'


class NativeFormat(ActionFormat):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

    name = "native"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """Read the only call; the text around it is reasoning."""
        calls, problem = find_calls(text)
        if len(calls) > 1:
            return ParseError(f"error: your answer has {len(calls)} tool calls and none was made; make one at a time")
        if not calls:
            problem = f" ({problem})" if problem else ""
            return ParseError(f"error: no tool call could be read from your answer{problem}; write {_EXAMPLE}")
        if calls[0].tool not in tools:
            return ParseError(f"error: there is no tool {calls[0].tool!r}; there are {', '.join(sorted(tools))}")
        return calls[0]

    def write(self, action: Action, reasoning: str = "") -> str:
        """Return ``reasoning`` and the call."""
        call = json.dumps({"name": action.tool, "arguments": action.values}, ensure_ascii=False)
        return f"{reasoning}\n{_OPEN}\n{call}\n</tool_call>".lstrip("\n")

    def message(self, observation: str, action: Action | None) -> str:
        """Return the observation between response tags, as the chat templates of Qwen write a tool's message."""
        return observation if action is None else f"<tool_response>\n{observation}\n</tool_response>"

    def describe(self, tools: Tools) -> str:
        """Return the functions as JSON lines between tags, and an example of a call."""
        lines = "\n".join(json.dumps(schema) for schema in describe_schemas(tools))
        return f"<tools>\n{lines}\n</tools>\n\nCall one function per answer:\n{_EXAMPLE}"


def find_calls(text: str) -> tuple[list[Action], str]:
    """Return the well-formed calls of ``text``, and the error of the first malformed one."""
    calls: list[Action] = []
    problem = ""
    position = text.find(_OPEN)
    while position >= 0:
        call = _read_native_call(text, position + len(_OPEN))
        if isinstance(call, str):
            problem, end = problem or call, position + len(_OPEN)
        else:
            calls.append(call[0])
            end = call[1]
        position = text.find(_OPEN, end)
    return calls, problem


def text_of_message(message: Mapping[str, Any]) -> str:
    """Return the text form of a chat API's message with ``tool_calls`` (their arguments a JSON string or an object)."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        parts.append(f'{_OPEN}\n{{"name": {json.dumps(function["name"])}, "arguments": {written}}}\n</tool_call>')
    return "\n".join(part for part in parts if part)


def message_of_text(text: str, call_ids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the structured form of a completion: ``content`` before the first call, its calls as ``tool_calls``."""
    calls, _ = find_calls(text)
    if not calls:
        return {"role": "assistant", "content": text}
    ids = [*call_ids, *(f"call_{index}" for index in range(len(call_ids), len(calls)))]
    return {
        "role": "assistant",
        "content": text.partition(_OPEN)[0].strip() or None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(call.values, ensure_ascii=False)},
            }
            for call_id, call in zip(ids, calls, strict=True)
        ],
    }


def _read_native_call(text: str, start: int) -> tuple[Action, int] | str:
    parsed = read_json(text, start)
    if isinstance(parsed, str):
        return parsed
    value, end = parsed
    closing = _CLOSE.match(text, end)
    if closing is None:
        return "no </tool_call> behind the JSON"
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "the JSON names no function"
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return "the arguments are no object"
    return Action(value["name"], arguments), closing.end()
