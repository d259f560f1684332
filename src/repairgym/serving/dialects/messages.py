"""Anthropic's Messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.serving.dialects.base import (
    JSON,
    OF_OTHER_SERVERS,
    PLAIN_TEXT,
    Dialect,
    Exchange,
    Frame,
    Writer,
    read_flag,
    read_items,
    read_sampling,
    reject_changes,
    token_fields,
)
from repairgym.serving.dialects.conversation import make_chat_request
from repairgym.serving.records import ChatRequest, Delta, ModelReply, RequestError

_NAMES = {
    "model": "model",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "seed": "seed",
    "stream": "is_stream",
    "return_token_ids": "has_token_ids",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = OF_OTHER_SERVERS | {
    "container": (),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "max_completion_tokens": (),
    "mcp_servers": ([],),
    "n": (1,),
    "presence_penalty": (0,),
    "response_format": (PLAIN_TEXT,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "thinking": ({"type": "disabled"},),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}


class MessagesDialect(Dialect):
    """``/v1/messages``."""

    path = "/v1/messages"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request."""
        if body.get("max_tokens") is None:
            raise RequestError("max_tokens: field required")
        return self.read_prompt(body)

    def read_prompt(self, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request whose tokens are counted: it needs no ``max_tokens``."""
        reject_changes(body, _NEUTRAL)
        output = body.get("output_config") or {}
        if not isinstance(output, dict) or set(output) - {"format"}:
            raise RequestError("output_config: only format is supported")
        system = [{"role": "system", "content": _text(body["system"], "system")}] if body.get("system") else []
        conversation = [*system, *(part for message in read_items(body, "messages") for part in _read_message(message))]
        choice = body.get("tool_choice") or {"type": "auto"}
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind not in (*_CHOICES, "tool"):
            raise RequestError("tool_choice: expected {'type': 'auto', 'any', 'tool' or 'none'}")
        read_flag(choice, "disable_parallel_tool_use")
        named = {"function": {"name": choice.get("name")}}
        return make_chat_request(
            read_sampling(body, _NAMES),
            conversation,
            [_read_tool(tool) for tool in read_items(body, "tools")],
            named if kind == "tool" else _CHOICES[kind],
            output.get("format"),
        )

    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return a ``message``."""
        reply = replies[0]
        usage = {"input_tokens": exchange.num_prompt_tokens, "output_tokens": len(reply.generation.token_ids)}
        content = [{"type": "text", "text": text}] if (text := reply.message["content"]) else []
        return {
            **_head(exchange),
            "content": content + [_call(call) for call in reply.message.get("tool_calls") or ()],
            "stop_reason": _stop_reason(reply),
            "stop_sequence": _stop_sequence(reply),
            "usage": usage,
            **token_fields(exchange, reply),
        }

    def writer(self, exchange: Exchange) -> Writer:
        """Return what writes the events of a message."""
        return _MessagesWriter(exchange)

    def error(self, error: RequestError) -> JSON:
        """Return the body of an error."""
        kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}

    def error_frame(self, error: RequestError) -> Frame:
        """Return the end of a stream that fails."""
        return Frame(self.error(error), "error")


class _MessagesWriter(Writer):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._has_text = False
        self._num_blocks = 0

    def start(self) -> Sequence[Frame]:
        usage = {"input_tokens": self._exchange.num_prompt_tokens, "output_tokens": 0}
        message = {**_head(self._exchange), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [_frame("message_start", message=message)]

    def grow(self, delta: Delta) -> Sequence[Frame]:
        if not delta.text:
            return ()
        opening = [] if self._has_text else [self._start_block({"type": "text", "text": ""})]
        self._has_text = True
        return [*opening, self._grow_block({"type": "text_delta", "text": delta.text})]

    def end_reply(self, reply: ModelReply) -> Sequence[Frame]:
        frames = [self._end_block()] if self._has_text else []
        for call in reply.message.get("tool_calls") or ():
            frames.append(self._start_block(_call(call) | {"input": {}}))
            frames.append(self._grow_block({"type": "input_json_delta", "partial_json": call["function"]["arguments"]}))
            frames.append(self._end_block())
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": _stop_sequence(reply)}
        usage = {"output_tokens": len(reply.generation.token_ids)}
        return [*frames, _frame("message_delta", delta=ending, usage=usage, **token_fields(self._exchange, reply))]

    def end(self, replies: Sequence[ModelReply]) -> Sequence[Frame]:
        return [_frame("message_stop")]

    def _start_block(self, block: JSON) -> Frame:
        return _frame("content_block_start", index=self._num_blocks, content_block=block)

    def _grow_block(self, delta: JSON) -> Frame:
        return _frame("content_block_delta", index=self._num_blocks, delta=delta)

    def _end_block(self) -> Frame:
        self._num_blocks += 1
        return _frame("content_block_stop", index=self._num_blocks - 1)


def _frame(kind: str, **fields: Any) -> Frame:
    return Frame({"type": kind, **fields}, kind)


def _head(exchange: Exchange) -> JSON:
    return {"id": f"msg_{exchange.id}", "type": "message", "role": "assistant", "model": exchange.model}


def _stop_reason(reply: ModelReply) -> str:
    # Clients run the calls of an answer only where this is its reason, whatever text ended it.
    is_text = reply.stop_text is not None and reply.finish == "stop"
    return "stop_sequence" if is_text else _STOP_REASONS[reply.finish]


def _stop_sequence(reply: ModelReply) -> str | None:
    return reply.stop_text if reply.finish == "stop" else None


def _call(call: Mapping[str, Any]) -> JSON:
    function = call["function"]
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": function["name"],
        "input": json.loads(function["arguments"]),
    }


def _read_tool(tool: object) -> JSON:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise RequestError("tools: expected custom tools with a name; tools of a provider are not supported")
    function = {"name": tool["name"], "description": tool.get("description") or ""}
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema") or {}}}


def _read_message(message: object) -> list[JSON]:
    """Return one message as several: results of tools are messages of their own."""
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or role not in ("user", "assistant", "system"):
        raise RequestError("messages: expected objects with role user or assistant")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RequestError("messages: content is neither text nor a list of blocks")
    texts: list[str] = []
    calls: list[JSON] = []
    results: list[JSON] = []
    for block in blocks:
        if block.get("type") == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif block.get("type") == "tool_result" and role == "user":
            text = _text(block.get("content") or "", "tool_result")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        else:
            texts.append(_text([block], "messages"))
    text = "".join(texts)
    own = {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}
    return [*results, own] if text or not results else results


def _text(content: object, place: str) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
        for block in blocks
    ):
        raise RequestError(f"{place}: only text can be read; leave images, documents and thoughts out")
    return "".join(block["text"] for block in blocks)
