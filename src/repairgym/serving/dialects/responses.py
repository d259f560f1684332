"""OpenAI's Responses, without stored state: each request holds its whole conversation."""

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
    read_items,
    read_sampling,
    reject_changes,
    token_fields,
)
from repairgym.serving.dialects.conversation import make_chat_request
from repairgym.serving.dialects.openai import log_prob_entries
from repairgym.serving.records import ChatRequest, Delta, ModelReply, RequestError

_NAMES = {
    "model": "model",
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_logprobs": "num_top_log_probs",
    "stop": "stop",
    "seed": "seed",
    "stream": "is_stream",
    "return_token_ids": "has_token_ids",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = OF_OTHER_SERVERS | {
    "background": (False,),
    "conversation": (),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "max_completion_tokens": (),
    "max_tokens": (),
    "max_tool_calls": (),
    "n": (1,),
    "presence_penalty": (0,),
    "previous_response_id": (),
    "prompt": (),
    "response_format": (PLAIN_TEXT,),
    "stop_token_ids": ([],),
    "top_k": (0, -1),
    "truncation": ("disabled",),
}
_LOG_PROBS = "message.output_text.logprobs"
_REPEATED = ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user")


class ResponsesDialect(Dialect):
    """``/v1/responses``."""

    path = "/v1/responses"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request."""
        reject_changes(body, _NEUTRAL)
        effort = _table(body, "reasoning").get("effort")
        if effort not in (None, "none"):
            raise RequestError("reasoning.effort: this model has no such setting; leave it out")
        text = _table(body, "text")
        reject_changes(text, {name: ("medium",) if name == "verbosity" else () for name in text if name != "format"})
        include = read_items(body, "include")
        if set(map(str, include)) - {_LOG_PROBS, "reasoning.encrypted_content"}:
            raise RequestError(f"include: only {_LOG_PROBS} is supported")
        choice = body.get("tool_choice") or "auto"
        if isinstance(choice, dict):
            choice = {"function": {"name": choice.get("name")}}
        instructions = body.get("instructions")
        opening = [{"role": "system", "content": instructions}] if instructions else []
        return make_chat_request(
            read_sampling(body, _NAMES, has_log_probs=_LOG_PROBS in include),
            opening + _read_input(body.get("input")),
            [_read_tool(tool) for tool in read_items(body, "tools")],
            choice,
            text.get("format"),
        )

    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return a ``response``."""
        writer = _ResponsesWriter(exchange)
        delta = Delta(0, replies[0].message["content"] or "", (), ())
        generation = replies[0].generation
        tokens = Delta(0, "", generation.token_ids, generation.log_probs, replies[0].top_tokens)
        for event in (delta, tokens):
            writer.grow(event)
        writer.end_reply(replies[0])
        return writer.response(replies[0])

    def writer(self, exchange: Exchange) -> Writer:
        """Return what writes the events of a response."""
        return _ResponsesWriter(exchange)

    def error_frame(self, error: RequestError) -> Frame:
        """Return the end of a stream that fails."""
        return Frame({"type": "error", **self.error(error)["error"]}, "error")


class _ResponsesWriter(Writer):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._num_frames = 0
        self._text = ""
        self._log_probs: list[JSON] = []
        self._output: list[JSON] = []
        self._is_text_open = False

    def start(self) -> Sequence[Frame]:
        return [self._frame(f"response.{name}", response=self.response(None)) for name in ("created", "in_progress")]

    def grow(self, delta: Delta) -> Sequence[Frame]:
        frames = [] if self._is_text_open or not delta.text else self._open_text()
        if self._exchange.request.sampling.has_log_probs and delta.token_ids:
            self._log_probs += log_prob_entries(self._exchange, delta.token_ids, delta.log_probs, delta.top_tokens)
        self._text += delta.text
        if delta.text:
            log_probs = self._log_probs[len(self._log_probs) - len(delta.token_ids) :] if self._log_probs else []
            frames.append(self._text_frame("output_text.delta", delta=delta.text, logprobs=log_probs))
        return frames

    def end_reply(self, reply: ModelReply) -> Sequence[Frame]:
        calls = reply.message.get("tool_calls") or ()
        frames = [] if self._is_text_open or calls else self._open_text()
        if self._is_text_open:
            frames += self._close_text()
        for call in calls:
            frames += self._write_call(call)
        return frames

    def end(self, replies: Sequence[ModelReply]) -> Sequence[Frame]:
        response = self.response(replies[0])
        return [self._frame(f"response.{response['status']}", response=response)]

    def response(self, reply: ModelReply | None) -> JSON:
        """Return the whole object; None: the answer has just begun."""
        body = self._exchange.body
        is_cut = reply is not None and reply.finish == "length"
        document: JSON = {
            "id": f"resp_{self._exchange.id}",
            "object": "response",
            "created_at": self._exchange.created,
            "status": "in_progress" if reply is None else "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._exchange.model,
            "output": self._output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "usage": None if reply is None else self._usage(reply),
            **{name: body.get(name) for name in _REPEATED},
        }
        return document if reply is None else document | token_fields(self._exchange, reply)

    def _usage(self, reply: ModelReply) -> JSON:
        num_prompt, num_completion = self._exchange.num_prompt_tokens, len(reply.generation.token_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_completion,
        }

    def _open_text(self) -> list[Frame]:
        self._is_text_open = True
        item = self._message("in_progress", [])
        return [
            self._frame("response.output_item.added", output_index=0, item=item),
            self._text_frame("content_part.added", part=_part("", [])),
        ]

    def _close_text(self) -> list[Frame]:
        item = self._message("completed", [_part(self._text, self._log_probs)])
        self._output = [item]
        return [
            self._text_frame("output_text.done", text=self._text, logprobs=self._log_probs),
            self._text_frame("content_part.done", part=item["content"][0]),
            self._frame("response.output_item.done", output_index=0, item=item),
        ]

    def _write_call(self, call: Mapping[str, Any]) -> list[Frame]:
        place, item_id = len(self._output), f"fc_{call['id']}"
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        item = {"id": item_id, "type": "function_call", "call_id": call["id"], "name": name}
        whole = item | {"arguments": arguments, "status": "completed"}
        self._output = [*self._output, whole]
        places = {"item_id": item_id, "output_index": place}
        started = item | {"arguments": "", "status": "in_progress"}
        return [
            self._frame("response.output_item.added", output_index=place, item=started),
            self._frame("response.function_call_arguments.delta", **places, delta=arguments),
            self._frame("response.function_call_arguments.done", **places, name=name, arguments=arguments),
            self._frame("response.output_item.done", output_index=place, item=whole),
        ]

    def _message(self, status: str, content: list[JSON]) -> JSON:
        item_id = f"msg_{self._exchange.id}"
        return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _text_frame(self, kind: str, **fields: Any) -> Frame:
        places = {"item_id": f"msg_{self._exchange.id}", "output_index": 0, "content_index": 0}
        return self._frame(f"response.{kind}", **places, **fields)

    def _frame(self, kind: str, **fields: Any) -> Frame:
        self._num_frames += 1
        return Frame({"type": kind, "sequence_number": self._num_frames - 1, **fields}, kind)


def _part(text: str, log_probs: list[JSON]) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": log_probs}


def _table(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise RequestError(f"{name}: expected an object")
    return value


def _read_tool(tool: object) -> JSON:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise RequestError("tools: expected {'type': 'function', 'name': ...}; tools of a provider are not supported")
    return {
        "type": "function",
        "function": {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name)},
    }


def _read_input(value: object) -> list[JSON]:
    """Return the conversation; calls belong to the assistant's message before them."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError("input: expected a text or a list of items")
    messages: list[JSON] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), call]
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        else:
            raise RequestError(f"input: items of type {str(kind)[:100]!r} are not supported")
    return messages
