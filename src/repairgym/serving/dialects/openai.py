"""Parts that Chat Completions and Completions share; fields for token ids have vLLM's names and places."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.inference.engine.shaping import TopTokens
from repairgym.serving.dialects.base import JSON, Exchange, read_flag
from repairgym.serving.records import ModelReply, RequestError

LEAST_LOG_PROB = -9999.0
"""OpenAI's value for what cannot be sampled; JSON has no infinity."""
SAMPLING_NAMES = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "n": "num_choices",
    "return_token_ids": "has_token_ids",
    "stream": "is_stream",
}


def read_stream_options(body: Mapping[str, Any]) -> bool:
    """Return whether a stream ends with the counts of tokens."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("stream_options: expected an object")
    return read_flag(options, "include_usage")


def head(exchange: Exchange, kind: str, prefix: str) -> JSON:
    """Return the fields that every document and every chunk has."""
    return {
        "id": f"{prefix}-{exchange.id}",
        "object": kind,
        "created": exchange.created,
        "model": exchange.model,
    }


def usage(exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
    """Return the counts of tokens."""
    num_completion = sum(len(reply.generation.token_ids) for reply in replies)
    return {
        "prompt_tokens": exchange.num_prompt_tokens,
        "completion_tokens": num_completion,
        "total_tokens": exchange.num_prompt_tokens + num_completion,
    }


def finite(log_prob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return log_prob if math.isfinite(log_prob) else LEAST_LOG_PROB


def log_prob_entries(
    exchange: Exchange, token_ids: Sequence[int], log_probs: Sequence[float], top_tokens: Sequence[TopTokens]
) -> list[JSON]:
    """Return log-probabilities in the form of Chat Completions."""

    def entry(token_id: int, log_prob: float) -> JSON:
        text = exchange.spell([token_id])
        # A token that holds a part of a character has no text of its own, so its bytes are not told by it.
        spelled = None if "\ufffd" in text else list(text.encode("utf-8", "replace"))
        return {"token": text, "logprob": finite(log_prob), "bytes": spelled}

    tops: Sequence[TopTokens] = top_tokens or [()] * len(token_ids)
    return [
        entry(token_id, log_prob) | {"top_logprobs": [entry(*other) for other in top]}
        for token_id, log_prob, top in zip(token_ids, log_probs, tops, strict=True)
    ]
