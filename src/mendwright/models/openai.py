"""Policies behind a server: any that speaks OpenAI's protocol as text, vLLM and `mend serve` also as token ids.

Reads prompts as token ids; makes `Generation` records. Invariants: `OpenAIPolicy` sends text, and what comes back is
encoded once and marked `UNKNOWN_VERSION`, so RL refuses it; `VllmPolicy` sends and receives ids, and its
log-probabilities are those of the distribution that was sampled. Streaming is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from mendwright.config.endpoint import EndpointConfig
from mendwright.errors import PromptTooLongError, ServerRefusedError
from mendwright.ledger import UNKNOWN_VERSION
from mendwright.models.base import Generation, Sampling
from mendwright.models.endpoint import EndpointClient
from mendwright.models.renderer import ChatRenderer
from mendwright.models.replies import Reply, read_chat_reply, read_text_reply, read_token_reply

_MAX_SEED = (1 << 31) - 1
_UNCHANGED = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent always: servers take other values from a model's generation_config without a word (paper B, finding 2)."""
_CHARS_PER_TOKEN = 3
"""Of prompts whose tokenizer is not known here, for the rate limit."""


class OpenAIPolicy:
    """A :class:`~mendwright.models.base.Policy` over a text-only server: a teacher or a baseline."""

    def __init__(self, client: EndpointClient, renderer: ChatRenderer) -> None:
        """``renderer`` turns prompts into messages and replies into tokens of the record."""
        self.id = client.config.model
        self._client = client
        self._config = client.config
        self._renderer = renderer

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: Sampling) -> Generation:
        """The server's next message.

        Raises:
            PromptTooLongError: it does not fit the model's context.
            ModelServerError: no usable reply, or the request is refused.
        """
        path, body = self._request(prompt_ids, sampling)
        num_tokens = len(self._renderer.text(prompt_ids)) // _CHARS_PER_TOKEN + sampling.max_tokens
        reply, cost_usd = await self._client.ask(path, body, lambda got: self._read(got, sampling), num_tokens)
        ids = self._renderer.action_ids(self._text(reply))
        ids = ids if reply.is_stopped else ids[:-1]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=reply.is_stopped,
            policy_version=UNKNOWN_VERSION,
            cost_usd=cost_usd,
        )

    async def end_session(self, session_id: str) -> None:
        """Nothing is kept for a session."""

    def _request(self, prompt_ids: list[int], sampling: Sampling) -> tuple[str, dict[str, Any]]:
        body = _common(self._config, sampling)
        if self._config.api == "completions":
            stop = [self._renderer.family.message_end]
            return "/completions", body | {"prompt": self._renderer.text(prompt_ids), "stop": stop}
        messages = [{"role": role, "content": text} for role, text in self._renderer.messages(prompt_ids)]
        return "/chat/completions", body | {"messages": messages}

    def _read(self, got: Mapping[str, Any], sampling: Sampling) -> Reply:
        is_chat = self._config.api == "chat"
        return read_chat_reply(got, sampling.max_tokens) if is_chat else read_text_reply(got, sampling.max_tokens)

    def _text(self, reply: Reply) -> str:
        if self._config.reasoning == "dropped" or not reply.reasoning:
            return reply.text
        return f"<think>\n{reply.reasoning.strip()}\n</think>\n\n{reply.text}"


class VllmPolicy:
    """A :class:`~mendwright.models.base.Policy` over a server that speaks token ids: exact, so RL may learn from it."""

    def __init__(self, client: EndpointClient, version: int = 0) -> None:
        """``version`` is that of the weights that the server holds."""
        self.id = client.config.model
        self._client = client
        self._config = client.config
        self._version = version
        self._max_len_tokens: int | None = None
        self._lock = asyncio.Lock()
        self._is_checked = False

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: Sampling) -> Generation:
        """Continue ``prompt_ids``.

        At a temperature other than 1 vLLM reports log-probabilities of temperature 1, so the version is unknown then.

        Raises:
            PromptTooLongError: it does not fit the model's context.
            ModelServerError: no usable reply, or the request is refused.
        """
        room = await self._room(len(prompt_ids))
        max_tokens = sampling.max_tokens if room is None else min(sampling.max_tokens, room)
        body = _common(self._config, sampling.model_copy(update={"max_tokens": max_tokens})) | _UNCHANGED
        body |= {"prompt": prompt_ids, "stop_token_ids": list(sampling.stop_token_ids), "logprobs": 1}
        body |= {"return_token_ids": True}

        def read(got: Mapping[str, Any]) -> Reply:
            return read_token_reply(got, prompt_ids, max_tokens)

        reply, cost_usd = await self._client.ask("/completions", body, read, len(prompt_ids) + max_tokens)
        return Generation(
            token_ids=reply.token_ids,
            log_probs=reply.log_probs,
            is_stopped=reply.token_ids[-1] in sampling.stop_token_ids,
            policy_version=self._version if sampling.temperature == 1.0 else UNKNOWN_VERSION,
            cost_usd=cost_usd,
        )

    async def end_session(self, session_id: str) -> None:
        """The server keeps its own cache."""

    async def _room(self, num_prompt_tokens: int) -> int | None:
        """Tokens that a reply may have; None where the server does not say how long its context is.

        Raises:
            PromptTooLongError: none.
        """
        async with self._lock:
            if not self._is_checked:
                self._max_len_tokens = await self._check()
                self._is_checked = True
        if self._max_len_tokens is None:
            return None
        if num_prompt_tokens >= self._max_len_tokens:
            raise PromptTooLongError(
                f"a prompt of {num_prompt_tokens} tokens; {self._config.model} has a context of {self._max_len_tokens}"
            )
        return self._max_len_tokens - num_prompt_tokens

    async def _check(self) -> int | None:
        """Context length of the model, where the server says it.

        Raises:
            ServerRefusedError: the server is too old, or does not serve the model.
        """
        version = ((await self._client.get("/version")) or {}).get("version")
        if isinstance(version, str) and _is_too_old(version):
            raise ServerRefusedError(
                f"{self._config.base_url} runs vLLM {version}; token ids in replies need 0.10.2 or newer: update it, "
                "or use --policy openai (text only, no RL)"
            )
        listed = ((await self._client.get("models")) or {}).get("data")
        if not isinstance(listed, list):
            return None
        served = {card["id"]: card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)}
        if self._config.model not in served:
            raise ServerRefusedError(
                f"{self._config.base_url} serves {', '.join(sorted(served)) or 'nothing'}, not {self._config.model!r}; "
                "set endpoint.model"
            )
        length = served[self._config.model].get("max_model_len")
        return length if isinstance(length, int) and length > 0 else None


def _common(config: EndpointConfig, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": config.model,
        "temperature": sampling.temperature,
        config.max_tokens_name: sampling.max_tokens,
        "stream": False,
    }
    if config.has_seed:
        body["seed"] = sampling.seed & _MAX_SEED
    return body | config.extra


def _is_too_old(version: str) -> bool:
    """True before `return_token_ids` (vllm-project/vllm pull request 22587; vLLM's blog of 2025-10-22: from 0.10.2)."""
    parts = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    return len(parts) == 3 and (0, 0, 0) < tuple(parts) < (0, 10, 2)
