"""Conversations that come back as text, continued with the token ids that were sampled.

A chat client sends the whole conversation with each request, what the model said included. Reads these messages; makes
prompts. Invariant: where every answer in a conversation is one that was given here, the prompt is the prompt and the
completion of the request before, plus what is new (it extends the ledger); where one was changed, the conversation is
rendered from its text up to there (it forks).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repairgym.bridges.serving.requests import ChatRequest, content_text, to_conversation
from repairgym.inference.renderer import ChatRenderer


@dataclass(frozen=True)
class _Known:
    token_ids: tuple[int, ...]
    """Prompt and completion."""
    is_stopped: bool


class ConversationMemory:
    """The last conversations of a server, by what was said in them."""

    def __init__(self, renderer: ChatRenderer, max_entries: int = 4096) -> None:
        """Remember at most ``max_entries`` answers; the longest unused go first."""
        self._renderer = renderer
        self._max_entries = max_entries
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """The prompt that ``request`` asks to be answered."""
        messages = request.messages
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            key = _key(request, messages[:end])
            if known := self._known.get(key):
                self._known.move_to_end(key)
                new = to_conversation(messages[end:])
                return [*known.token_ids, *self._renderer.continuation_ids(new, known.is_stopped)]
        return self._renderer.conversation_ids(request.conversation)

    def remember(
        self, request: ChatRequest, answer: Mapping[str, Any], token_ids: Sequence[int], *, is_stopped: bool
    ) -> None:
        """``answer`` was given to ``request``; ``token_ids`` are its prompt and completion."""
        self._known[_key(request, [*request.messages, answer])] = _Known(tuple(token_ids), is_stopped)
        while len(self._known) > self._max_entries:
            self._known.popitem(last=False)


def _key(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> bytes:
    """What was said: clients may add fields to a message and write its arguments anew, but not change it."""
    said = [[message["role"], content_text(message), _calls(message)] for message in messages]
    text = json.dumps([said, list(request.tools)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or "{}"
        try:
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            values = arguments
        found.append((call["function"]["name"], values))
    return found
