"""Conversations in the form of Chat Completions, into which the other dialects convert theirs."""

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.serving.records import UNSUPPORTED, ChatRequest, RequestError, SamplingRequest


def make_chat_request(
    sampling: SamplingRequest,
    messages: object,
    tools: object,
    choice: object,
    output: object,
    *,
    is_usage_streamed: bool = False,
) -> ChatRequest:
    """Check the parts of a request: ``choice`` is the choice of a tool, ``output`` the form of the answer."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestError("messages: expected a list with at least one message")
    if messages[-1].get("role") == "assistant":
        raise RequestError("messages: the last one is the assistant's; continuing a message is not supported")
    for message in messages:
        _check_message(message)
    if not isinstance(tools, list) or not all(map(_is_function, tools)):
        raise RequestError("tools: expected a list of {'type': 'function', 'function': {'name': ...}}")
    shown = () if choice == "none" else tuple(tools)
    required = _required(choice, [tool["function"]["name"] for tool in shown])
    return ChatRequest(sampling, tuple(messages), shown, required, _read_schema(output), is_usage_streamed)


def _required(choice: object, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the tools of which one must be called."""
    if choice in (None, "auto", "none"):
        return ()
    if choice == "required" and names:
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise RequestError("tool_choice: expected 'auto', 'none', 'required' or the name of one of the tools")
    return (str(name),)


def _read_schema(output: object) -> Mapping[str, Any] | None:
    if output in (None, {"type": "text"}):
        return None
    kind = output.get("type") if isinstance(output, dict) else None
    if isinstance(output, dict) and kind == "json_object":
        return {"type": "object"}
    holder = output.get("json_schema", output) if isinstance(output, dict) else None
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise RequestError("format: expected type text, json_object, or json_schema with a schema", code=UNSUPPORTED)
    return schema


def _check_message(message: Mapping[str, Any]) -> None:
    if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
        raise RequestError(f"messages: role {str(message.get('role'))[:200]!r} is unknown")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise RequestError("messages: only text can be read; leave images, audio and files out")
    if content is not None and not isinstance(content, str | list):
        raise RequestError(f"messages: content is {type(content).__name__}, expected text")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(map(_is_function, calls)):
        raise RequestError("messages: a tool call without the name of its function")
    ids = [message.get("tool_call_id"), *(call.get("id") for call in calls)]
    if not all(each is None or isinstance(each, str) for each in ids):
        raise RequestError("messages: the id of a tool call is no text")


def _is_function(value: object) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
