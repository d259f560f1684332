"""One server of token ids: vLLM, or `repairgym serve`.

Guarantees: every parameter with a default of the server is sent, and the reply is checked against it. Only ``generate``
reports the weights of each token, so training uses it; rollouts of fixed weights use ``completions``, which older
servers have, too.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from repairgym.config.models import EndpointConfig
from repairgym.errors import ConfigError, ModelReplyError, PromptTooLongError, ServerRejectedError
from repairgym.inference.base import SamplingParams
from repairgym.inference.endpoint import Answer, EndpointClient
from repairgym.inference.openai import MAX_SEED, request_fields
from repairgym.inference.replies import (
    Reply,
    TokenChunk,
    read_generate_reply,
    read_prompt_log_probs,
    read_token_chunk,
    read_token_reply,
)

GENERATE = "/inference/v1/generate"
ResultT = TypeVar("ResultT")
UNCHANGED: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": True,
}
"""Always sent: servers silently take other values from a model's generation_config (paper B, finding 2). With
``ignore_eos`` a message ends only at the stop tokens of the request."""


class TokenServer:
    """One server; any number of coroutines of one event loop may use it. Failures are `ModelServerError`."""

    def __init__(self, client: EndpointClient, *, is_versioned: bool = False) -> None:
        """``is_versioned``: replies must report the weights of each token.

        `ConfigError`: ``endpoint.extra`` changes the sampled distribution.
        """
        if changed := sorted({*UNCHANGED, "sampling_params", "token_ids", "logprobs"} & set(client.config.extra)):
            raise ConfigError(f"endpoint.extra sets {', '.join(changed)}; the policy vllm sets it itself, leave it out")
        self.client = client
        self.is_versioned = is_versioned
        self._max_len_tokens: int | None = None
        self._is_described = False

    @property
    def config(self) -> EndpointConfig:
        """Address and settings."""
        return self.client.config

    @property
    def url(self) -> str:
        """Address, for messages."""
        return self.config.base_url

    async def sample(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Answer:
        """Continue ``prompt_ids``, at most to the end of the server's context.

        Raises:
            PromptTooLongError: it does not fit the server's context.
            ServerRejectedError: the server ends replies at other places than requested, or rejects the request.
            ModelServerError: no usable reply.
        """
        room = await self._room(len(prompt_ids))
        max_tokens = sampling.max_tokens if room is None else min(sampling.max_tokens, room)
        bounded = sampling.model_copy(update={"max_tokens": max_tokens})
        path, body = self._request(list(prompt_ids), bounded)

        def read(answer: Mapping[str, Any]) -> Reply:
            reader = read_generate_reply if self.is_versioned else read_token_reply
            reply = reader(answer, prompt_ids, max_tokens)
            self._check_end(reply, bounded)
            return reply

        return await self.client.ask(path, body, read, len(prompt_ids) + max_tokens)

    @asynccontextmanager
    async def stream(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, changes: Mapping[str, Any], num_top: int = 0
    ) -> AsyncIterator[AsyncIterator[TokenChunk]]:
        """Continue ``prompt_ids``, and give the tokens as they come; raises as `sample`.

        ``changes`` are fields of the request that change the sampled distribution. The end of the context ends the
        sampling.
        """
        body = request_fields(self.config, sampling) | UNCHANGED | {"stop_token_ids": list(sampling.stop_token_ids)}
        body |= {"prompt": list(prompt_ids), "logprobs": max(num_top, 1), "stream": True, **changes}
        body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        async with self.client.stream("completions", body, len(prompt_ids) + sampling.max_tokens) as events:
            yield _chunks(events, prompt_ids, num_top)

    async def prompt_log_probs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the natural log-probability of each token after the first under the server's current weights."""
        body = request_fields(self.config, SamplingParams(max_tokens=1, stop_token_ids=())) | UNCHANGED
        body |= {"prompt": list(token_ids), "prompt_logprobs": 0}

        def read(answer: Mapping[str, Any]) -> Reply:
            return Reply("", True, None, log_probs=read_prompt_log_probs(answer, token_ids))

        return (await self.client.ask("completions", body, read, len(token_ids) + 1)).reply.log_probs

    async def weight_version(self) -> str:
        """Return the server's name for its weights; empty if it reports none."""
        info = await self.client.get("/weight_info")
        return str((info or {}).get("weight_version", ""))

    async def is_paused(self) -> bool:
        """True if it is paused for an update of weights; False if it does not report that."""
        info = await self.client.get("/is_paused")
        return bool((info or {}).get("is_paused", False))

    async def max_len_tokens(self) -> int | None:
        """Return the longest prompt plus reply, None if the server does not report it; a success is cached.

        `ServerRejectedError`: the server is too old, or does not serve the model.
        """
        if not self._is_described:
            # Concurrent callers all ask: behind a lock they would wait for a dead server in turn.
            self._max_len_tokens = await self._describe()
            self._is_described = True
        return self._max_len_tokens

    def _request(self, prompt_ids: list[int], sampling: SamplingParams) -> tuple[str, dict[str, Any]]:
        stop: dict[str, Any] = {"stop_token_ids": list(sampling.stop_token_ids)}
        if not self.is_versioned:
            fields = request_fields(self.config, sampling) | UNCHANGED | stop
            return "completions", fields | {"prompt": prompt_ids, "logprobs": 1, "return_token_ids": True}
        parameters: dict[str, Any] = UNCHANGED | stop | {"n": 1, "logprobs": 0, "detokenize": False}
        parameters |= {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
        if self.config.has_seed:
            parameters["seed"] = sampling.seed & MAX_SEED
        body = {"model": self.config.model, "token_ids": prompt_ids, "sampling_params": parameters}
        return GENERATE, body | {"stream": False, "return_token_ids": True} | self.config.extra

    def _check_end(self, reply: Reply, sampling: SamplingParams) -> None:
        """Reject a server with its own bound or stop tokens, which changes the distribution of replies."""
        num, last = len(reply.token_ids), reply.token_ids[-1]
        if reply.is_stopped and last not in sampling.stop_token_ids:
            raise ServerRejectedError(
                f"{self.url} ended a reply at token {last}, which is none of the stop tokens "
                f"{list(sampling.stop_token_ids)}; start it without its own: vllm serve ... --generation-config vllm"
            )
        if not reply.is_stopped and num < sampling.max_tokens:
            raise ServerRejectedError(
                f"{self.url} cut a reply off after {num} of max_tokens={sampling.max_tokens}; start it without a bound "
                "of its own: vllm serve ... --generation-config vllm, without --override-generation-config"
            )

    async def _room(self, num_prompt_tokens: int) -> int | None:
        """Maximum tokens of a reply; None if the server does not report its context."""
        length = await self.max_len_tokens()
        if length is None:
            return None
        if num_prompt_tokens >= length:
            raise PromptTooLongError(
                f"a prompt of {num_prompt_tokens} tokens; {self.config.model} has a context of {length}"
            )
        return length - num_prompt_tokens

    async def _describe(self) -> int | None:
        version = ((await self.client.get("/version")) or {}).get("version")
        if isinstance(version, str) and _is_too_old(version):
            raise ServerRejectedError(
                f"{self.url} runs vLLM {version}; token ids in replies need 0.10.2 or newer: "
                "pip install --upgrade vllm, or use --policy openai (text only, no RL)"
            )
        listed = ((await self.client.get("models")) or {}).get("data")
        if not isinstance(listed, list):
            return None
        served = {card["id"]: card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)}
        if self.config.model not in served:
            names = ", ".join(sorted(served)) or "nothing"
            raise ServerRejectedError(
                f"{self.url} serves {names}, not {self.config.model!r}; set endpoint.model to what it serves, or start "
                f"it with: vllm serve FOLDER --served-model-name {self.config.model}"
            )
        length = served[self.config.model].get("max_model_len")
        return length if isinstance(length, int) and length > 0 else None


async def _chunks(
    events: AsyncIterator[Mapping[str, Any]], prompt_ids: Sequence[int], num_top: int
) -> AsyncIterator[TokenChunk]:
    """Read a stream up to the end that it names; `ModelReplyError` where it names none or has no tokens."""
    finish, num_tokens = "", 0
    async for event in events:
        chunk = read_token_chunk(event, prompt_ids)
        finish, num_tokens = chunk.finish or finish, num_tokens + len(chunk.token_ids)
        # The sampled token is reported besides the likeliest ones.
        yield chunk._replace(top_tokens=tuple(top[:num_top] for top in chunk.top_tokens) if num_top else ())
    if not finish or not num_tokens:
        raise ModelReplyError(
            f"a stream of {num_tokens} token ids that ends by {finish or 'no reason'!r}; token ids in streams need "
            "vLLM 0.10.2 or newer"
        )


async def ask_servers(
    endpoint: EndpointConfig, work: Callable[[list[TokenServer]], Awaitable[ResultT]], *, is_versioned: bool
) -> ResultT:
    """Run ``work`` on the servers of ``endpoint``, then close their connections."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(EndpointClient(server)) for server in endpoint.servers()]
        return await work([TokenServer(client, is_versioned=is_versioned) for client in clients])


def _is_too_old(version: str) -> bool:
    parts = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    return len(parts) == 3 and (0, 0, 0) < tuple(parts) < (0, 10, 2)
