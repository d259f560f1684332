"""The content of a message in the forms of chat APIs: text, a list of parts, calls of tools.

Reads messages of OpenAI, Anthropic and Inspect. Guarantees: a part that has no text form is a `FormatError`, never left
out in silence; thoughts are left out, as an answer does not hold them.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from repairgym.bridges.trajectories.base import Document, FormatError, ToolCall

_CALL, _RESULT = "tool_use", "tool_result"
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")


def text_of(content: Any) -> str:
    """Return the text of a content; results of tools stand on lines of their own."""
    if not isinstance(content, list):
        if content is not None and not isinstance(content, str):
            raise FormatError(f"content is {type(content).__name__}, expected text")
        return content or ""
    text, is_after_result = "", False
    for part in content:
        added, is_result = _text_of_part(part), isinstance(part, Mapping) and part.get("type") == _RESULT
        text += "\n" if text and added and (is_result or is_after_result) else ""
        text += added
        is_after_result = is_result
    return text


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise FormatError(f"a part of a content is {type(part).__name__}, expected text or an object")
    kind = part.get("type")
    if kind == _RESULT:
        return text_of(part.get("content"))
    if kind == _CALL or kind in _THOUGHTS:
        return ""
    text = part.get("refusal" if kind == "refusal" else "text")  # words: ok
    if not isinstance(text, str):
        raise FormatError(f"a part of a content has the type {kind!r} and no text, so it cannot be read")
    return text


def calls_of(message: Document) -> Iterator[ToolCall]:
    """Yield the calls of a message: its ``tool_calls``, or the parts of its content."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise FormatError("a tool call without the name of its function")
        yield _call(function.get("name"), function.get("arguments"))
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == _CALL:
            yield _call(part.get("name"), part.get("input", part.get("arguments")))


def _call(name: Any, given: Any) -> ToolCall:
    if not isinstance(name, str):
        raise FormatError("a tool call without the name of its function")
    given = given or {}
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        arguments = None
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, dict) else {"arguments": given})
