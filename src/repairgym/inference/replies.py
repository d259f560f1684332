"""Checked replies of model servers: OpenAI's chat and text completions, vLLM's with token ids and its `generate`.

Guarantee: a reply without a needed part, of another prompt, or with inconsistent counts, lengths or end is a
`ModelReplyError`, never a guess; optional parts (``usage``) may be missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from repairgym.errors import ModelReplyError

_STOPPED = ("stop", "eos_token", "stop_sequence")
_LOG_PROB_NOISE = 1e-3
"""Servers of lower precision may report a certain token slightly above log 1."""


@dataclass(frozen=True)
class Usage:
    """Token counts as the server bills them."""

    num_prompt_tokens: int
    num_reply_tokens: int
    num_cached_tokens: int = 0
    """Part of the prompt tokens."""


@dataclass(frozen=True)
class Reply:
    """One choice."""

    text: str
    is_stopped: bool
    """True if the model ended its message, False if ``max_tokens`` did."""
    usage: Usage | None
    reasoning: str = ""
    """A thought that the server sent separately from the text."""
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    weight_versions: tuple[str, ...] = ()
    """The server's name for the weights that sampled each token; empty if it reports none."""


def read_chat_reply(body: Mapping[str, Any], max_tokens: int) -> Reply:
    """Read the first choice of ``/chat/completions``."""
    choice, is_stopped = _choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ModelReplyError("a choice without a message")
    if message.get("tool_calls"):
        raise ModelReplyError(
            "a reply with tool calls, which were not requested; switch the server's tool parser off "
            "(the pipeline reads calls from the text)"
        )
    text = message.get("content")
    if text is None and not is_stopped:
        text = ""  # the thought used the whole budget
    if not isinstance(text, str):
        raise ModelReplyError(f"a message whose content is {type(text).__name__}, expected text")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    usage = _usage(body, text, max_tokens)
    return Reply(text, is_stopped, usage, reasoning if isinstance(reasoning, str) else "")


def read_text_reply(body: Mapping[str, Any], max_tokens: int) -> Reply:
    """Read the first choice of ``/completions`` as text."""
    choice, is_stopped = _choice(body)
    text = choice.get("text")
    if not isinstance(text, str):
        raise ModelReplyError(f"a choice whose text is {type(text).__name__}, expected text")
    return Reply(text, is_stopped, _usage(body, text, max_tokens))


def read_token_reply(body: Mapping[str, Any], prompt_ids: Sequence[int], max_tokens: int) -> Reply:
    """Read the first choice of ``/completions`` as token ids with log-probabilities (vLLM's ``return_token_ids``)."""
    reply = read_text_reply(body, max_tokens)
    choice = body["choices"][0]
    ids = choice.get("token_ids")
    log_probs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(ids, list) or not isinstance(log_probs, list):
        raise ModelReplyError(
            "a reply without token_ids or logprobs; they need vLLM 0.10.2 or newer, or `repairgym serve`"
        )
    _check_prompt(choice.get("prompt_token_ids"), prompt_ids, reply.usage)
    return replace(reply, **_tokens(ids, log_probs, reply.usage, max_tokens))


class TokenChunk(NamedTuple):
    """Tokens of an answer that arrived together."""

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    top_tokens: tuple[tuple[tuple[int, float], ...], ...] = ()
    """(token id, log-probability) of the likeliest tokens at each place, likeliest first."""
    finish: str = ""
    """Reason of the end, in the last chunk."""


def read_token_chunk(body: Mapping[str, Any], prompt_ids: Sequence[int]) -> TokenChunk:
    """Read one event of a stream of ``/completions`` with ``return_tokens_as_token_ids``; an event may be empty."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise ModelReplyError("a choice that is no object")
    _check_prompt(choice.get("prompt_token_ids"), prompt_ids, None)
    finish = str(choice.get("finish_reason") or "")
    entries = choice.get("logprobs") or {}
    ids, log_probs = choice.get("token_ids") or [], entries.get("token_logprobs") or []
    if not ids and not log_probs:
        return TokenChunk(finish=finish)
    tokens = _tokens(ids, log_probs, None, len(ids))
    tops = entries.get("top_logprobs") or [{}] * len(ids)
    return TokenChunk(**tokens, top_tokens=tuple(map(_top_tokens, tops)), finish=finish)


def _top_tokens(entries: object) -> tuple[tuple[int, float], ...]:
    """Read ``{"token_id:7": -0.1, ...}``."""
    rows = [(name.rpartition(":")[2], value) for name, value in entries.items()] if isinstance(entries, dict) else []
    if not all(number.isdecimal() and _is_log_prob(value) for number, value in rows):
        raise ModelReplyError(f"top_logprobs without token ids: {str(entries)[:200]}; they need vLLM 0.10.2 or newer")
    return tuple(sorted(((int(number), min(0.0, value)) for number, value in rows), key=lambda row: -row[1]))


def read_generate_reply(body: Mapping[str, Any], prompt_ids: Sequence[int], max_tokens: int) -> Reply:
    """Read the first choice of vLLM's ``/inference/v1/generate``: token ids, log-probabilities, weight versions."""
    choice, is_stopped = _choice(body)
    content = (choice.get("logprobs") or {}).get("content")
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ModelReplyError("a reply without token_ids or logprobs")
    if [row.get("token_id") for row in content] != ids:
        raise ModelReplyError("log-probabilities of other tokens than those of the reply")
    usage = _usage(body, "", max_tokens)
    _check_prompt(body.get("prompt_token_ids"), prompt_ids, usage)
    tokens = _tokens(ids, [row.get("logprob") for row in content], usage, max_tokens)
    return Reply("", is_stopped, usage, **tokens, weight_versions=_weight_versions(choice, len(ids)))


def read_prompt_log_probs(body: Mapping[str, Any], prompt_ids: Sequence[int]) -> tuple[float, ...]:
    """Read the log-probability of each prompt token after the first (``prompt_logprobs`` of ``/completions``)."""
    choice, _ = _choice(body)
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt_ids):
        raise ModelReplyError(f"a reply without the prompt_logprobs of {len(prompt_ids)} tokens; they need vLLM")
    values = [_named(row, token_id) for row, token_id in zip(rows[1:], prompt_ids[1:], strict=True)]
    if bad := [value for value in values if not _is_log_prob(value)]:
        raise ModelReplyError(f"invalid prompt_logprobs, e.g. {bad[0]!r}")
    return tuple(min(0.0, float(value)) for value in values)


def _named(row: object, token_id: int) -> Any:
    entry = row.get(str(token_id)) if isinstance(row, dict) else None
    return entry.get("logprob") if isinstance(entry, dict) else None


def _check_prompt(echoed: object, prompt_ids: Sequence[int], usage: Usage | None) -> None:
    num_read = len(prompt_ids) if usage is None else usage.num_prompt_tokens
    if isinstance(echoed, list) and echoed != list(prompt_ids):
        num_read = len(echoed)
    elif num_read == len(prompt_ids):
        return
    raise ModelReplyError(f"the server read a prompt of {num_read} tokens, not the {len(prompt_ids)} that were sent")


def _tokens(ids: list[Any], log_probs: Sequence[Any], usage: Usage | None, max_tokens: int) -> dict[str, Any]:
    """``token_ids`` and ``log_probs`` of a reply."""
    num_billed = usage.num_reply_tokens if usage else len(ids)
    if not len(ids) == len(log_probs) == num_billed or not 0 < len(ids) <= max_tokens:
        raise ModelReplyError(
            f"{len(ids)} token ids, {len(log_probs)} log-probabilities and a count of {num_billed} tokens, "
            f"expected the same number three times, from 1 to {max_tokens}"
        )
    bad = [value for value in log_probs if not _is_log_prob(value)]
    if bad or not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ModelReplyError(f"invalid token ids or log-probabilities, e.g. {(bad or ids)[0]!r}")
    return {"token_ids": tuple(ids), "log_probs": tuple(min(0.0, float(value)) for value in log_probs)}


def _weight_versions(choice: Mapping[str, Any], num_tokens: int) -> tuple[str, ...]:
    spans = choice.get("weight_versions")
    versions: list[str] = []
    for span in spans if isinstance(spans, list) else ():
        if not isinstance(span, dict) or span.get("start") != len(versions) or not isinstance(span.get("end"), int):
            break
        versions += [str(span.get("version"))] * (span["end"] - len(versions))
    if len(versions) != num_tokens:
        raise ModelReplyError(f"weight_versions of {len(versions)} of {num_tokens} tokens: {spans!r}")
    return tuple(versions)


def _is_log_prob(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value <= _LOG_PROB_NOISE


def _choice(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the first choice, and True if the model ended it."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        error = body.get("error")
        raise ModelReplyError(f"a reply without choices{f', but with an error: {error}' if error else ''}")
    reason = choices[0].get("finish_reason")
    if reason not in (*_STOPPED, "length"):
        raise ModelReplyError(f"a reply with finish_reason={reason!r}, expected stop or length")
    return choices[0], reason in _STOPPED


def _usage(body: Mapping[str, Any], text: str, max_tokens: int) -> Usage | None:
    usage = body.get("usage")
    if usage is None:
        return None
    if not isinstance(usage, dict):
        raise ModelReplyError(f"invalid token counts: {usage!r}")
    num_prompt, num_reply = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(num_prompt, int) or not isinstance(num_reply, int) or min(num_prompt, num_reply) < 0:
        raise ModelReplyError(f"invalid token counts: {usage!r}")
    total = usage.get("total_tokens", num_prompt + num_reply)
    if num_prompt == 0 or (num_reply == 0 and text) or num_reply > max_tokens or total != num_prompt + num_reply:
        raise ModelReplyError(
            f"wrong token counts: prompt {num_prompt}, reply {num_reply} for {len(text)} characters and "
            f"max_tokens={max_tokens}, total {total}"
        )
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(num_prompt, num_reply, cached if isinstance(cached, int) and 0 <= cached <= num_prompt else 0)
