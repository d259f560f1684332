"""Native tool calls in the Hermes and Qwen form, and in the structured form of chat APIs.

Models with tool training write ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` and read
``<tool_response>``; chat servers turn the first into ``tool_calls`` of the message. The text is the record, so a
structured message is written back in that form (`text_of_message`) and vice versa (`message_of_text`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.agent.formats.base import Action, ActionFormat, ParseError, Tools, describe_schemas, read_json

_OPEN = "<tool_call>"
_CLOSE = re.compile(r"\s*</tool_call>")
_EXAMPLE = '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'


class NativeFormat(ActionFormat):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

    name = "native"

    def parse(self, text: str, tools: Tools) -> Action | ParseError:
        """The only call; what stands around it is reasoning."""
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
        """``reasoning`` and the call."""
        call = json.dumps({"name": action.tool, "arguments": action.values}, ensure_ascii=False)
        return f"{reasoning}\n{_OPEN}\n{call}\n</tool_call>".lstrip("\n")

    def answer(self, observation: str, action: Action | None) -> str:
        """The observation between response tags, as the chat templates of Qwen write a tool's message."""
        return observation if action is None else f"<tool_response>\n{observation}\n</tool_response>"

    def describe(self, tools: Tools) -> str:
        """The functions as JSON lines between tags, and how to call one."""
        lines = "\n".join(json.dumps(schema) for schema in describe_schemas(tools))
        return f"<tools>\n{lines}\n</tools>\n\nCall one function per answer:\n{_EXAMPLE}"


def find_calls(text: str) -> tuple[list[Action], str]:
    """The well-formed calls of ``text``, and what is wrong with the first that is not."""
    calls: list[Action] = []
    problem = ""
    position = text.find(_OPEN)
    while position >= 0:
        found = _read_call(text, position + len(_OPEN))
        if isinstance(found, str):
            problem, end = problem or found, position + len(_OPEN)
        else:
            calls.append(found[0])
            end = found[1]
        position = text.find(_OPEN, end)
    return calls, problem


def text_of_message(message: Mapping[str, Any]) -> str:
    """The text form of a chat API's message with ``tool_calls`` (their arguments a JSON string or an object)."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        parts.append(f'{_OPEN}\n{{"name": {json.dumps(function["name"])}, "arguments": {written}}}\n</tool_call>')
    return "\n".join(part for part in parts if part)


def message_of_text(text: str, call_ids: Sequence[str] = ()) -> dict[str, Any]:
    """The structured form of an answer: its ``content`` before the first call, its calls as ``tool_calls``."""
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


def _read_call(text: str, start: int) -> tuple[Action, int] | str:
    found = read_json(text, start)
    if isinstance(found, str):
        return found
    value, end = found
    closing = _CLOSE.match(text, end)
    if closing is None:
        return "no </tool_call> behind the JSON"
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "the JSON names no function"
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return "the arguments are no object"
    return Action(value["name"], arguments), closing.end()
