"""OpenAI's Chat Completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.serving.dialects import openai
from repairgym.serving.dialects.base import (
    JSON,
    OF_OTHER_SERVERS,
    Dialect,
    Exchange,
    Frame,
    Writer,
    read_sampling,
    reject_changes,
)
from repairgym.serving.dialects.conversation import make_chat_request
from repairgym.serving.records import ChatRequest, Delta, ModelReply, RequestError

_NAMES = openai.SAMPLING_NAMES | {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "logprobs": "has_log_probs",
    "top_logprobs": "num_top_log_probs",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = OF_OTHER_SERVERS | {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class ChatDialect(Dialect):
    """``/v1/chat/completions``."""

    path = "/v1/chat/completions"

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Check a request."""
        reject_changes(body, _NEUTRAL)
        sampling = read_sampling(body, _NAMES)
        if sampling.num_top_log_probs and not sampling.has_log_probs:
            raise RequestError("top_logprobs: needs logprobs=true")
        return make_chat_request(
            sampling,
            body.get("messages"),
            body.get("tools") or [],
            body.get("tool_choice"),
            body.get("response_format"),
            is_usage_streamed=openai.read_stream_options(body),
        )

    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return a ``chat.completion``."""
        sampling = exchange.request.sampling
        choices = []
        for reply in replies:
            choice: JSON = {"index": reply.number, "message": reply.message, "finish_reason": reply.finish}
            generation = reply.generation
            if sampling.has_log_probs:
                choice["logprobs"] = {
                    "content": openai.log_prob_entries(
                        exchange, generation.token_ids, generation.log_probs, reply.top_tokens
                    ),
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
            content = openai.log_prob_entries(self._exchange, delta.token_ids, delta.log_probs, delta.top_tokens)
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


def _version(replies: Sequence[ModelReply]) -> int:
    return min(reply.generation.policy_version for reply in replies)
