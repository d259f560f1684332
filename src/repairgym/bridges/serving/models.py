"""Models behind the server: a policy that samples, or a script that answers; and the memory of conversations.

Reads checked requests; makes `ModelReply` records. A chat client sends the whole conversation with each request, the
model's answers included. Guarantees:

- Where the conversation holds only answers that were given here, the prompt is the previous prompt and completion plus
  the new messages (it extends the ledger); where an answer was changed, the conversation is rendered from its text up
  to there (it forks).
- A prompt that leaves no room is rejected before any computation.
- A script's answers are marked as having no log-probabilities.
"""

import hashlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repairgym.agent.formats import message_of_text
from repairgym.bridges.serving.requests import (
    ChatRequest,
    RequestError,
    SamplingRequest,
    TextRequest,
    content_text,
    to_conversation,
)
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer, Message
from repairgym.ledger import UNKNOWN_VERSION

Answer = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str]
"""A script: (whole conversation, tools) -> next message."""


@dataclass(frozen=True)
class ModelReply:
    """An answer with its tokens."""

    text: str
    message: Mapping[str, Any]
    """The text as a message with separate tool calls; of chat requests."""
    prompt_ids: tuple[int, ...]
    generation: Generation


class ServedModel(Protocol):
    """A model that answers both kinds of requests."""

    renderer: ChatRenderer
    max_len_tokens: int | None
    """Longest prompt plus completion; None: no bound."""

    async def chat(self, request: ChatRequest) -> ModelReply:
        """Return the next message; `RequestError` where the request cannot be answered."""
        ...

    async def complete(self, request: TextRequest) -> ModelReply:
        """Return a continuation of the prompt; `RequestError` where the request cannot be answered."""
        ...


@dataclass(frozen=True)
class _Remembered:
    token_ids: tuple[int, ...]
    """Prompt and completion."""
    is_stopped: bool


class ConversationMemory:
    """The last conversations of a server, by their content."""

    def __init__(self, renderer: ChatRenderer, max_entries: int = 4096) -> None:
        """Remember at most ``max_entries`` answers; the least recently used are dropped."""
        self._renderer = renderer
        self._max_entries = max_entries
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """Return the prompt of ``request``."""
        messages = request.messages
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            key = _key(request, messages[:end])
            if known := self._remembered.get(key):
                self._remembered.move_to_end(key)
                new = to_conversation(messages[end:])
                return [*known.token_ids, *self._renderer.continuation_ids(new, known.is_stopped)]
        return self._renderer.conversation_ids(request.conversation)

    def remember(
        self, request: ChatRequest, answer: Mapping[str, Any], token_ids: Sequence[int], *, is_stopped: bool
    ) -> None:
        """Remember the ``answer`` to ``request``; ``token_ids`` are its prompt and completion."""
        self._remembered[_key(request, [*request.messages, answer])] = _Remembered(tuple(token_ids), is_stopped)
        while len(self._remembered) > self._max_entries:
            self._remembered.popitem(last=False)


def _key(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Digest the content: clients may add fields to a message and rewrite its arguments, but not change it."""
    contents = [[message["role"], content_text(message), _calls(message)] for message in messages]
    text = json.dumps([contents, list(request.tools)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or "{}"
        try:
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            values = arguments
        calls.append((call["function"]["name"], values))
    return calls


class PolicyModel:
    """A :class:`~repairgym.inference.base.Policy` that samples."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, max_len_tokens: int, default_reply_tokens: int = 512
    ) -> None:
        """Serve ``policy``; its prompt plus completion have at most ``max_len_tokens``."""
        self.renderer = renderer
        self.max_len_tokens: int | None = max_len_tokens
        self._max_len_tokens = max_len_tokens
        self._default_reply_tokens = default_reply_tokens
        self._policy = policy
        self._memory = ConversationMemory(renderer)
        self._numbers = itertools.count()

    async def chat(self, request: ChatRequest) -> ModelReply:
        """Sample the next message after the tokens of the conversation so far."""
        prompt_ids = self._memory.prompt_ids(request)
        generation = await self._generate(prompt_ids, request.sampling)
        text = self.renderer.decode(generation.token_ids)
        message = message_of_text(text) if request.tools else {"role": "assistant", "content": text}
        ids = [*prompt_ids, *generation.token_ids]
        self._memory.remember(request, message, ids, is_stopped=self._has_stop(generation))
        return ModelReply(text, message, tuple(prompt_ids), generation)

    async def complete(self, request: TextRequest) -> ModelReply:
        """Sample a continuation of the prompt."""
        prompt_ids = list(request.prompt_ids) or self.renderer.prompt_ids(request.prompt)
        generation = await self._generate(prompt_ids, request.sampling)
        return ModelReply(self.renderer.decode(generation.token_ids), {}, tuple(prompt_ids), generation)

    async def _generate(self, prompt_ids: list[int], request: SamplingRequest) -> Generation:
        room = self._max_len_tokens - len(prompt_ids)
        if room < 1:
            raise RequestError(
                f"this model's maximum context length is {self._max_len_tokens} tokens, and the prompt alone has "
                f"{len(prompt_ids)}; shorten it",
                code="context_length_exceeded",
            )
        if max(prompt_ids) >= self.renderer.vocab_size:
            raise RequestError(
                f"prompt: token id {max(prompt_ids)} is not below this model's {self.renderer.vocab_size}"
            )
        session_id = f"serve/{next(self._numbers)}"
        sampling = SamplingParams(
            temperature=request.temperature,
            max_tokens=min(request.max_tokens or self._default_reply_tokens, room),
            stop_token_ids=self._stop_token_ids(request),
            seed=request.seed,
        )
        try:
            return await self._policy.generate(session_id, prompt_ids, sampling)
        finally:
            await self._policy.end_session(session_id)

    def _stop_token_ids(self, request: SamplingRequest) -> tuple[int, ...]:
        own = self.renderer.family.message_end
        if other := [text for text in request.stop if text != own]:
            raise RequestError(
                f"stop={other[0]!r} is not supported; answers end at {own!r} and at stop_token_ids",
                code="unsupported_parameter",
            )
        return tuple(dict.fromkeys((*self.renderer.stop_token_ids, *request.stop_token_ids)))

    def _has_stop(self, generation: Generation) -> bool:
        """Return whether its own token closed the message; any other stop token leaves it open."""
        return generation.token_ids[-1:] == self.renderer.stop_token_ids


class ScriptModel:
    """A script that gets the whole conversation each time and keeps no state."""

    def __init__(self, answer: Answer, renderer: ChatRenderer) -> None:
        """``renderer`` makes the tokens, which text clients ignore."""
        self.renderer = renderer
        self.max_len_tokens: int | None = None
        self._answer = answer

    async def chat(self, request: ChatRequest) -> ModelReply:
        """Return the script's next message."""
        conversation = to_conversation(request.messages)
        generation = self._generation(self._answer(conversation, request.tools), request.sampling)
        text = self.renderer.decode(generation.token_ids)
        message = message_of_text(text) if request.tools else {"role": "assistant", "content": text}
        return ModelReply(text, message, tuple(self.renderer.conversation_ids(conversation)), generation)

    async def complete(self, request: TextRequest) -> ModelReply:
        """Return the script's next message, where the prompt is a conversation in the chat form."""
        prompt_ids = list(request.prompt_ids) or self.renderer.prompt_ids(request.prompt)
        generation = self._generation(self._answer(self.renderer.messages(prompt_ids), ()), request.sampling)
        return ModelReply(self.renderer.decode(generation.token_ids), {}, tuple(prompt_ids), generation)

    def _generation(self, text: str, request: SamplingRequest) -> Generation:
        whole = self.renderer.action_ids(text)
        ids = whole[: request.max_tokens]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=len(ids) == len(whole),
            policy_version=UNKNOWN_VERSION,
        )
