"""What stands behind the server: a policy that samples, or a script that answers.

Reads checked requests; makes `Completion` records. Invariants: a prompt that leaves no room is refused before anything
is computed; what a script says has no log-probabilities and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repairgym.agent.formats.tool_calls import message_of_text
from repairgym.bridges.serving.conversations import ConversationMemory
from repairgym.bridges.serving.requests import ChatRequest, RequestError, SamplingRequest, TextRequest, to_conversation
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer, Message
from repairgym.ledger import UNKNOWN_VERSION

Answer = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str]
"""A script: the whole conversation and the tools to the next message."""


@dataclass(frozen=True)
class Completion:
    """An answer with the tokens that it was made of."""

    text: str
    message: Mapping[str, Any]
    """The text as a message, tool calls apart; of chat requests."""
    prompt_ids: tuple[int, ...]
    generation: Generation


class ServedModel(Protocol):
    """Something that answers both kinds of requests."""

    renderer: ChatRenderer
    max_len_tokens: int | None
    """Longest prompt plus completion; None: no bound."""

    async def chat(self, request: ChatRequest) -> Completion:
        """The next message.

        Raises:
            RequestError: the request cannot be answered.
        """
        ...

    async def complete(self, request: TextRequest) -> Completion:
        """What follows the prompt.

        Raises:
            RequestError: the request cannot be answered.
        """
        ...


class PolicyModel:
    """A :class:`~repairgym.inference.base.Policy` that samples."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, max_len_tokens: int, default_reply_tokens: int = 512
    ) -> None:
        """Serve ``policy``.

        Args:
            policy: Samples.
            renderer: Of the policy's tokenizer.
            max_len_tokens: Longest prompt plus completion of the policy.
            default_reply_tokens: Bound on the replies to requests that set none.
        """
        self.renderer = renderer
        self.max_len_tokens: int | None = max_len_tokens
        self._max_len_tokens = max_len_tokens
        self._default_reply_tokens = default_reply_tokens
        self._policy = policy
        self._memory = ConversationMemory(renderer)
        self._numbers = itertools.count()

    async def chat(self, request: ChatRequest) -> Completion:
        """The next message, sampled after the tokens of the conversation so far."""
        prompt_ids = self._memory.prompt_ids(request)
        generation = await self._generate(prompt_ids, request.sampling)
        text = self.renderer.decode(generation.token_ids)
        message = message_of_text(text) if request.tools else {"role": "assistant", "content": text}
        ids = [*prompt_ids, *generation.token_ids]
        self._memory.remember(request, message, ids, is_stopped=self._has_stop(generation))
        return Completion(text, message, tuple(prompt_ids), generation)

    async def complete(self, request: TextRequest) -> Completion:
        """What the policy samples after the prompt."""
        prompt_ids = list(request.prompt_ids) or self.renderer.prompt_ids(request.prompt)
        generation = await self._generate(prompt_ids, request.sampling)
        return Completion(self.renderer.decode(generation.token_ids), {}, tuple(prompt_ids), generation)

    async def _generate(self, prompt_ids: list[int], asked: SamplingRequest) -> Generation:
        room = self._max_len_tokens - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"this model's maximum context length is {self._max_len_tokens} tokens, and the prompt alone has "
                f"{len(prompt_ids)}; shorten it",
                code="context_length_exceeded",
            )
        if max(prompt_ids) >= self.renderer.vocab_size:
            raise RequestError(f"prompt: token id {max(prompt_ids)} is none of this model's {self.renderer.vocab_size}")
        session_id = f"serve/{next(self._numbers)}"
        sampling = SamplingParams(
            temperature=asked.temperature,
            max_tokens=min(asked.max_tokens or self._default_reply_tokens, room),
            stop_token_ids=self._stop_token_ids(asked),
            seed=asked.seed,
        )
        try:
            return await self._policy.generate(session_id, prompt_ids, sampling)
        finally:
            await self._policy.end_session(session_id)

    def _stop_token_ids(self, asked: SamplingRequest) -> tuple[int, ...]:
        own = self.renderer.family.message_end
        if other := [text for text in asked.stop if text != own]:
            raise RequestError(
                f"stop={other[0]!r} is not supported; answers end at {own!r} and at stop_token_ids",
                code="unsupported_parameter",
            )
        return tuple(dict.fromkeys((*self.renderer.stop_token_ids, *asked.stop_token_ids)))

    def _has_stop(self, generation: Generation) -> bool:
        """Whether the message was closed by its own token; any other stop token leaves it open."""
        return generation.token_ids[-1:] == self.renderer.stop_token_ids


class ScriptModel:
    """A script, which is asked with the whole conversation each time and keeps nothing."""

    def __init__(self, answer: Answer, renderer: ChatRenderer) -> None:
        """``renderer`` makes the tokens that text clients never look at."""
        self.renderer = renderer
        self.max_len_tokens: int | None = None
        self._answer = answer

    async def chat(self, request: ChatRequest) -> Completion:
        """The script's next message."""
        said = to_conversation(request.messages)
        generation = self._generation(self._answer(said, request.tools), request.sampling)
        text = self.renderer.decode(generation.token_ids)
        message = message_of_text(text) if request.tools else {"role": "assistant", "content": text}
        return Completion(text, message, tuple(self.renderer.conversation_ids(said)), generation)

    async def complete(self, request: TextRequest) -> Completion:
        """The script's next message, where the prompt is a conversation in the chat form."""
        prompt_ids = list(request.prompt_ids) or self.renderer.prompt_ids(request.prompt)
        generation = self._generation(self._answer(self.renderer.messages(prompt_ids), ()), request.sampling)
        return Completion(self.renderer.decode(generation.token_ids), {}, tuple(prompt_ids), generation)

    def _generation(self, text: str, asked: SamplingRequest) -> Generation:
        whole = self.renderer.action_ids(text)
        ids = whole[: asked.max_tokens]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=len(ids) == len(whole),
            policy_version=UNKNOWN_VERSION,
        )
