"""OpenAI's Chat Completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.bridges.serving.dialects import openai
from repairgym.bridges.serving.dialects.base import (
    JSON,
    Dialect,
    Exchange,
    Frame,
    Writer,
    read_sampling,
    reject_changes,
)
from repairgym.bridges.serving.records import ChatRequest, Delta, ModelReply, RequestError
from repairgym.inference.engine.shaping import TopTokens

_NAMES = openai.SAMPLING_NAMES | {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "logprobs": "has_log_probs",
    "top_logprobs": "num_top_log_probs",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = openai.NEUTRAL | {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class ChatDialect(Dialect):
    """``/v1/chat/completions``."""

    path = "/v1/chat/completions"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request."""
        messages = body.get("messages")
        check_messages(messages)
        reject_changes(body, _NEUTRAL)
        sampling = read_sampling(body, _NAMES)
        if sampling.num_top_log_probs and not sampling.has_log_probs:
            raise RequestError("top_logprobs: needs logprobs=true")
        tools = body.get("tools") or []
        if not isinstance(tools, list) or not all(map(_is_function, tools)):
            raise RequestError("tools: expected a list of {'type': 'function', 'function': {'name': ...}}")
        if body.get("tool_choice") == "none":
            tools = []
        return ChatRequest(sampling, tuple(messages or ()), tuple(tools), openai.read_stream_options(body))

    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return a ``chat.completion``."""
        sampling = exchange.request.sampling
        choices = []
        for reply in replies:
            choice: JSON = {"index": reply.number, "message": reply.message, "finish_reason": reply.finish}
            generation = reply.generation
            if sampling.has_log_probs:
                choice["logprobs"] = {
                    "content": _log_probs(exchange, generation.token_ids, generation.log_probs, reply.top_tokens),
                }
            if sampling.has_token_ids:
                choice["token_ids"] = list(generation.token_ids)
            choices.append(choice)
        document = openai.head(exchange, "chat.completion", "chatcmpl") | {"choices": choices}
        document |= {"usage": openai.usage(exchange, replies), "policy_version": _version(replies)}
        if sampling.has_token_ids:
            document["prompt_token_ids"] = list(exchange.prompts[0])
        return document

    def writer(self, exchange: Exchange) -> Writer:
        """Return what writes ``chat.completion.chunk`` events."""
        return _ChatWriter(exchange)


class _ChatWriter(Writer):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._request = exchange.request

    def start(self) -> Sequence[Frame]:
        first = {"role": "assistant", "content": ""}
        frames = [self._chunk(number, first) for number in range(self._request.num_replies)]
        if self._request.sampling.has_token_ids and isinstance(frames[0].data, dict):
            frames[0].data["prompt_token_ids"] = list(self._exchange.prompts[0])
        return frames

    def grow(self, delta: Delta) -> Sequence[Frame]:
        sampling = self._request.sampling
        extra: JSON = {}
        if sampling.has_log_probs and delta.token_ids:
            content = _log_probs(self._exchange, delta.token_ids, delta.log_probs, delta.top_tokens)
            extra["logprobs"] = {"content": content}
        if sampling.has_token_ids and delta.token_ids:
            extra["token_ids"] = list(delta.token_ids)
        if not delta.text and not extra:
            return ()
        return [self._chunk(delta.number, {"content": delta.text} if delta.text else {}, extra)]

    def end_reply(self, reply: ModelReply) -> Sequence[Frame]:
        calls = [{"index": place, **call} for place, call in enumerate(reply.message.get("tool_calls") or ())]
        frames = [self._chunk(reply.number, {"tool_calls": [call]}) for call in calls]
        return [*frames, self._chunk(reply.number, {}, {"finish_reason": reply.finish})]

    def end(self, replies: Sequence[ModelReply]) -> Sequence[Frame]:
        if not self._request.is_usage_streamed:
            return [Frame("[DONE]")]
        head = openai.head(self._exchange, "chat.completion.chunk", "chatcmpl")
        counts = {"choices": [], "usage": openai.usage(self._exchange, replies), "policy_version": _version(replies)}
        return [Frame(head | counts), Frame("[DONE]")]

    def _chunk(self, number: int, delta: JSON, extra: Mapping[str, Any] | None = None) -> Frame:
        choice = {"index": number, "delta": delta, "finish_reason": None, **(extra or {})}
        return Frame(openai.head(self._exchange, "chat.completion.chunk", "chatcmpl") | {"choices": [choice]})


def check_messages(messages: object) -> None:
    """Raise unless ``messages`` are a conversation that the model can continue."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestError("messages: expected a list with at least one message")
    if messages[-1].get("role") == "assistant":
        raise RequestError("messages: the last one is the assistant's; continuing a message is not supported")
    for message in messages:
        _check_message(message)


def _check_message(message: Mapping[str, Any]) -> None:
    if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
        raise RequestError(f"messages: role {str(message.get('role'))[:200]!r} is unknown")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise RequestError("messages: only text can be read; leave images, audio and files out")
    if content is not None and not isinstance(content, str | list):
        raise RequestError(f"messages: content is {type(content).__name__}, expected text")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(map(_is_function, calls)):
        raise RequestError("messages: a tool call without the name of its function")


def _is_function(value: object) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _log_probs(
    exchange: Exchange, token_ids: Sequence[int], log_probs: Sequence[float], top_tokens: Sequence[TopTokens]
) -> list[JSON]:
    def entry(token_id: int, log_prob: float) -> JSON:
        text = exchange.spell([token_id])
        return {"token": text, "logprob": openai.finite(log_prob), "bytes": list(text.encode("utf-8", "replace"))}

    tops: Sequence[TopTokens] = top_tokens or [()] * len(token_ids)
    return [
        entry(token_id, log_prob) | {"top_logprobs": [entry(*other) for other in top]}
        for token_id, log_prob, top in zip(token_ids, log_probs, tops, strict=True)
    ]


def _version(replies: Sequence[ModelReply]) -> int:
    return min(reply.generation.policy_version for reply in replies)
