"""The gateway: one episode's model for a black-box agent, over the dialects of `repairgym serve`.

Reads requests of the agent in the sandbox, asks the episode's policy and keeps the token ledger. Makes turns and the
reason for an end. Guarantees: the configuration decides how is sampled, whatever the agent asks for; a limit is an
error that the agent reads; a failure of the policy is kept for the runner and never looks like the agent's fault.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from socket import socket
from typing import Any, Protocol, runtime_checkable

import uvicorn

from repairgym.agent.conversation import SEED_STRIDE
from repairgym.agent.episode import Usage, is_loop, max_new_tokens, reached_limit
from repairgym.config.commands import ServeConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import PromptTooLongError, RepairGymError
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES
from repairgym.records import StopReason, Turn
from repairgym.serving.app import ModelServer
from repairgym.serving.dialects.base import OF_OTHER_SERVERS
from repairgym.serving.histories import EpisodeHistories, Prompt, Sample
from repairgym.serving.models import Growth, ServedModel
from repairgym.serving.records import (
    AnyRequest,
    ChatRequest,
    ModelReply,
    Report,
    RequestError,
    to_conversation,
)

_TOO_LONG = "context_length_exceeded"
_MAX_CONCURRENT, _MAX_WAITING = 1, 64


@runtime_checkable
class ConversationPolicy(Protocol):
    """A policy that reads messages and tools: a script that plays the model for agents of others."""

    async def answer(
        self, session_id: str, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Generation:
        """Return the next message of the session."""
        ...


class _PromptIds(list[int]):
    """The tokens of a prompt, with where they come from."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt.token_ids)
        self.prompt = prompt


class EpisodeModel(ServedModel):
    """The policy of one episode as the model of an agent."""

    def __init__(
        self,
        policy: Policy,
        renderer: ChatRenderer,
        limits: PipelineConfig,
        *,
        session_id: str,
        seed: int,
        temperature: float,
    ) -> None:
        super().__init__(renderer, max_remembered=0)
        self.histories = EpisodeHistories(renderer)
        self.turns: list[Turn] = []
        self.limit: StopReason | None = None
        """The limit that the latest request ran into."""
        self.failure: RepairGymError | None = None
        """The failure that ended the sampling."""
        self.generate_s = 0.0
        self.wait_s = 0.0
        """Of `generate_s`: waits for a place, attempts that failed, and answers that took longest and were given up."""
        self._asked_at_s: float | None = None
        self._usage = Usage()
        self._policy, self._limits, self._session_id = policy, limits, session_id
        self._seed, self._temperature = seed, temperature
        self._lock = asyncio.Lock()

    def _encode_prompts(self, request: AnyRequest) -> list[list[int]]:
        # Whether there is room is told by `reply`: requests that are only counted, or find no place, change nothing.
        if isinstance(request, ChatRequest):
            return [_PromptIds(self.histories.prompt(request))]
        return [_PromptIds(self.histories.text_prompt(text)) for text in request.prompts]

    def _check_room(self, num_tokens: int) -> None:
        if self.failure is not None:
            raise RequestError(f"the policy failed: {self.failure}", status=403, code="failed")
        self.limit = reached_limit(self._limits, self._usage, num_tokens)
        if self.limit is StopReason.TOKEN_LIMIT:
            message = f"prompt is too long: {num_tokens} tokens > {self._limits.max_len_tokens} maximum context length"
            raise RequestError(message, code=_TOO_LONG)
        if self.limit is not None:
            raise RequestError(f"the episode has reached its {self.limit.value}", status=403, code=self.limit.value)

    async def reply(self, request: AnyRequest, number: int, prompt_ids: list[int], report: Report) -> ModelReply:
        """Return answer ``number`` to ``request``, one at a time, and record it."""
        assert isinstance(prompt_ids, _PromptIds)
        async with self._lock:
            self._check_room(len(prompt_ids))
            self._asked_at_s = started = time.monotonic()
            try:
                reply = await super().reply(request, number, prompt_ids, report)
            except asyncio.CancelledError:
                # The agent gave up on an answer that a stalled server may owe it.
                self.generate_s += time.monotonic() - started
                self.wait_s += self._excess_s(started)
                raise
            finally:
                self._asked_at_s = None
            elapsed_s = time.monotonic() - started
            self.generate_s += elapsed_s
            self.wait_s += reply.generation.queue_s
            self._record(request, prompt_ids.prompt, reply, elapsed_s)
            return reply

    async def _generate(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        try:
            return await self._ask(request, prompt_ids)
        except PromptTooLongError as error:
            self.limit = StopReason.TOKEN_LIMIT
            raise RequestError(f"prompt is too long: {error}", code=_TOO_LONG) from error
        except RepairGymError as error:
            self.failure = error
            raise

    async def _ask(self, request: AnyRequest, prompt_ids: list[int]) -> Generation:
        if isinstance(self._policy, ConversationPolicy) and isinstance(request, ChatRequest):
            return await self._policy.answer(self._session_id, to_conversation(request.messages, HERMES), request.tools)
        room = max_new_tokens(self._limits, self._usage, len(prompt_ids))
        sampling = SamplingParams(
            temperature=self._temperature,
            max_tokens=min(room, request.sampling.max_tokens or room),
            stop_token_ids=self.renderer.stop_token_ids,
            seed=self._seed * SEED_STRIDE + self.histories.counts.num_answers,
        )
        return await self._policy.generate(self._session_id, prompt_ids, sampling)

    def _record(self, request: AnyRequest, prompt: Prompt, reply: ModelReply, elapsed_s: float) -> None:
        generation = reply.generation
        last = generation.token_ids[-1:]
        stop_id = last[0] if last and last[0] in self.renderer.stop_token_ids else None
        sample = self.histories.record(request, prompt, generation, reply.message, stop_id)
        call = next(iter(reply.message.get("tool_calls") or ()), None)
        self._usage.num_turns += 1
        self._usage.num_tool_calls += call is not None
        self._usage.num_output_tokens += len(generation.token_ids)
        self._usage.cost_usd += generation.cost_usd
        if prompt.parent is not None:
            self._observe(prompt.parent, prompt.observation)
        self.turns.append(
            Turn(
                action=self.renderer.decode(generation.token_ids),
                tool=call["function"]["name"] if call else None,
                arguments=_arguments(call) if call else {},
                observation="",
                action_span=sample.action,
                generate_s=elapsed_s,
                wait_s=generation.queue_s,
                cost_usd=generation.cost_usd,
            )
        )

    def waited_s(self) -> float:
        """Return the seconds of waits so far; of an open request, those by which it is the longest of the episode."""
        if self._asked_at_s is None:
            return self.wait_s
        return self.wait_s + self._excess_s(self._asked_at_s)

    def _excess_s(self, asked_at_s: float) -> float:
        longest_s = max((turn.generate_s - turn.wait_s for turn in self.turns), default=0.0)
        return max(0.0, time.monotonic() - asked_at_s - longest_s)

    def _observe(self, sample: Sample, text: str) -> None:
        """Note what followed an answer, the first time that the agent says it."""
        turn = self.turns[sample.number]
        if not turn.observation:
            before = self.turns[: sample.number]
            looping = is_loop(before, turn.action, text, self._limits.loop_repeats)
            self.turns[sample.number] = turn.model_copy(update={"observation": text, "is_loop": looping})


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    try:
        values = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


# --- the server ----------------------------------------------------------------------------------------------------


_OVERRIDDEN = frozenset({
    "context_management", "frequency_penalty", "include", "logit_bias", "min_p", "output_config", "presence_penalty",
    "reasoning", "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop_token_ids", "temperature",
    "text", "thinking", "tool_choice", "top_k", "top_p", "verbosity", *OF_OTHER_SERVERS,
})  # fmt: skip
"""Fields that would change the distribution, or settings of a provider's models: the configuration decides instead."""


def override_body(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request without `_OVERRIDDEN` and without tools that only a provider could run."""
    kept = {name: value for name, value in body.items() if name not in _OVERRIDDEN}
    if isinstance(tools := kept.get("tools"), list):
        # Anthropic's own type "custom" has a schema; OpenAI's, which is for free text, has none.
        kept["tools"] = [tool for tool in tools if not isinstance(tool, dict) or _is_function(tool)]
    return kept


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type", "custom") == "function" or "input_schema" in tool


@asynccontextmanager
async def open_gateway(model: EpisodeModel, listener: socket) -> AsyncIterator[None]:
    """Serve ``model`` under any name on ``listener``; requests end with the context."""
    config = ServeConfig(max_concurrent=_MAX_CONCURRENT, max_waiting=_MAX_WAITING)
    app = ModelServer(model, "", config, override=override_body).app()
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", http="h11", ws="none", timeout_graceful_shutdown=1
    )
    server = _Server(settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving


class _Server(uvicorn.Server):
    """A server without signal handlers: those of the process are its owner's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
