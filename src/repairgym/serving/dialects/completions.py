"""OpenAI's Completions: prompts as text or as token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.inference.engine.shaping import TopTokens
from repairgym.serving.dialects import openai
from repairgym.serving.dialects.base import (
    JSON,
    OF_OTHER_SERVERS,
    PLAIN_TEXT,
    Dialect,
    Exchange,
    Frame,
    Writer,
    read_flag,
    read_sampling,
    reject_changes,
)
from repairgym.serving.records import UNSUPPORTED, Delta, ModelReply, RequestError, TextRequest

_NAMES = openai.SAMPLING_NAMES | {"max_tokens": "max_tokens"}
_NEUTRAL: dict[str, tuple[Any, ...]] = OF_OTHER_SERVERS | {
    "max_completion_tokens": (),
    "response_format": (PLAIN_TEXT,),
    "suffix": ("",),
    "top_logprobs": (0,),
}
_MAX_PROMPTS = 128


class CompletionsDialect(Dialect):
    """``/v1/completions``."""

    path = "/v1/completions"

    def read(self, body: Mapping[str, Any]) -> TextRequest:
        """Check a request."""
        # By ``ignore_eos`` a client that names its stop tokens means that there are no others, as those of vLLM do.
        neutral = {"best_of": (1, body.get("n") or 1), "ignore_eos": (False, bool(body.get("stop_token_ids")))}
        reject_changes(body, _NEUTRAL | neutral)
        num_top = body.get("logprobs")
        if num_top is not None and (type(num_top) is not int or not 0 <= num_top <= 20):
            raise RequestError("logprobs: expected a number from 0 to 20")
        sampling = read_sampling(body, _NAMES, has_log_probs=num_top is not None, num_top_log_probs=num_top or 0)
        is_echo = read_flag(body, "echo")
        if is_echo and num_top is not None:
            raise RequestError("echo: log-probabilities of a prompt are not computed; leave one out", code=UNSUPPORTED)
        return TextRequest(sampling, _read_prompts(body.get("prompt")), is_echo, openai.read_stream_options(body))

    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return a ``text_completion``."""
        choices = []
        for reply in replies:
            generation = reply.generation
            delta = Delta(reply.number, reply.text, generation.token_ids, generation.log_probs, reply.top_tokens)
            choice = _choice(exchange, delta, _echo(exchange, reply.number), 0) | {"finish_reason": reply.finish}
            if exchange.request.sampling.has_token_ids:
                choice["prompt_token_ids"] = list(reply.prompt_ids)
            choices.append(choice)
        versions = [reply.generation.policy_version for reply in replies]
        return openai.head(exchange, "text_completion", "cmpl") | {
            "choices": choices,
            "usage": openai.usage(exchange, replies),
            "policy_version": min(versions),
        }

    def writer(self, exchange: Exchange) -> Writer:
        """Return what writes ``text_completion`` events."""
        return _CompletionsWriter(exchange)


class _CompletionsWriter(Writer):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._offsets = [0] * exchange.request.num_replies

    def start(self) -> Sequence[Frame]:
        echoes = ((number, _echo(self._exchange, number)) for number in range(len(self._offsets)))
        return [
            self._frame(_choice(self._exchange, Delta(number, "", (), ()), echo, 0)) for number, echo in echoes if echo
        ]

    def grow(self, delta: Delta) -> Sequence[Frame]:
        choice = _choice(self._exchange, delta, "", self._offsets[delta.number])
        self._offsets[delta.number] += len(delta.text)
        is_empty = not delta.text and choice["logprobs"] is None and "token_ids" not in choice
        return [] if is_empty else [self._frame(choice)]

    def end_reply(self, reply: ModelReply) -> Sequence[Frame]:
        choice: JSON = {"index": reply.number, "text": "", "logprobs": None, "finish_reason": reply.finish}
        if self._exchange.request.sampling.has_token_ids:
            choice["prompt_token_ids"] = list(reply.prompt_ids)
        return [self._frame(choice)]

    def end(self, replies: Sequence[ModelReply]) -> Sequence[Frame]:
        if not self._exchange.request.is_usage_streamed:
            return [Frame("[DONE]")]
        counts = {"choices": [], "usage": openai.usage(self._exchange, replies)}
        return [Frame(openai.head(self._exchange, "text_completion", "cmpl") | counts), Frame("[DONE]")]

    def _frame(self, choice: JSON) -> Frame:
        return Frame(openai.head(self._exchange, "text_completion", "cmpl") | {"choices": [choice]})


def _read_prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    if _is_prompt(value):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_PROMPTS or not all(map(_is_prompt, value)):
        raise RequestError(f"prompt: expected a text, a list of token ids, or a list of 1 to {_MAX_PROMPTS} of these")
    return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in value)


def _is_prompt(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(type(item) is int and item >= 0 for item in value)
    return isinstance(value, str) and bool(value)


def _echo(exchange: Exchange, number: int) -> str:
    request = exchange.request
    is_echo = isinstance(request, TextRequest) and request.is_echo
    return exchange.spell(exchange.prompt_of(number)) if is_echo else ""


def _choice(exchange: Exchange, delta: Delta, echo: str, offset: int) -> JSON:
    sampling = exchange.request.sampling
    choice: JSON = {"index": delta.number, "text": echo + delta.text, "logprobs": None, "finish_reason": None}
    if sampling.has_log_probs and delta.token_ids:
        choice["logprobs"] = _log_probs(exchange, delta, offset)
    if sampling.has_token_ids and delta.token_ids:
        choice["token_ids"] = list(delta.token_ids)
    return choice


def _log_probs(exchange: Exchange, delta: Delta, offset: int) -> JSON:
    tokens = [exchange.spell([token_id]) for token_id in delta.token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    tops: Sequence[TopTokens] = delta.top_tokens
    return {
        "tokens": tokens,
        "token_logprobs": [openai.finite(value) for value in delta.log_probs],
        "top_logprobs": [{exchange.spell([other]): openai.finite(value) for other, value in top} for top in tops]
        or None,
        "text_offset": offsets,
    }
