"""The memory of conversations: what tokens a client's messages were.

A chat client sends the whole conversation with each request, the model's answers included. Guarantees:

- Where the conversation holds only answers that were given here, the prompt is the previous prompt and completion plus
  the new messages (it extends the ledger); where an answer was changed, the conversation is rendered from its text up
  to there (it forks).
- At most ``max_entries`` answers are remembered, and of long ones only as many as have ``max_tokens`` together.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES
from repairgym.serving.records import UNSUPPORTED, ChatRequest, RequestError, content_text, to_conversation

_MAX_TOKENS = 1 << 25
"""128 MiB of ids."""


@dataclass(frozen=True)
class _Remembered:
    token_ids: array[int]
    """Prompt and completion."""
    stop_id: int | None
    """The stop token that ended it; None: it was cut off."""


class ConversationMemory:
    """The last conversations of a server, by their content."""

    def __init__(self, renderer: ChatRenderer, max_entries: int = 4096, max_tokens: int = _MAX_TOKENS) -> None:
        """Remember at most ``max_entries`` answers of ``max_tokens`` in all; the least recently used are dropped."""
        self._renderer = renderer
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """Return the prompt of ``request``; `RequestError` for tools of a model whose chat template has none."""
        messages = request.messages
        form = self._renderer.call_form
        if request.tools and form is None:
            raise RequestError("tools: the chat template of this model has none", code=UNSUPPORTED)
        conversation = to_conversation(messages, form or HERMES)
        for end in range(len(messages) - 1, 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            key = _key(request, messages[:end])
            if known := self._remembered.get(key):
                self._remembered.move_to_end(key)
                return [*known.token_ids, *self._renderer.continuation_ids(conversation[end:], known.stop_id)]
        return self._renderer.conversation_ids(conversation, request.tools)

    def remember(
        self, request: ChatRequest, answer: Mapping[str, Any], token_ids: Sequence[int], stop_id: int | None
    ) -> None:
        """Remember the ``answer`` to ``request``; ``token_ids`` are its prompt and completion."""
        key = _key(request, [*request.messages, answer])
        self._forget(self._remembered.pop(key, None))
        self._remembered[key] = _Remembered(array("i", token_ids), stop_id)
        self._num_tokens += len(token_ids)
        while len(self._remembered) > self._max_entries or (
            self._num_tokens > self._max_tokens and len(self._remembered) > 1
        ):
            self._forget(self._remembered.popitem(last=False)[1])

    def _forget(self, known: _Remembered | None) -> None:
        self._num_tokens -= len(known.token_ids) if known else 0


def _key(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Digest the content: clients may add fields to a message and rewrite its arguments, but not change it."""
    contents = [[message["role"], _content(message), _calls(message)] for message in messages]
    text = json.dumps([contents, list(request.tools)], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def message_key(message: Mapping[str, Any]) -> bytes:
    """Digest the content of one message; agents may strip the white space around an answer."""
    text = _content(message)
    content = [message["role"], text.strip() if message["role"] == "assistant" else text, _calls(message)]
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ).digest()


def _content(message: Mapping[str, Any]) -> str:
    text = content_text(message)
    # A stream sends the space before a call, which the whole message does not have.
    return text.strip() if message.get("tool_calls") else text


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], _values(call["function"])) for call in message.get("tool_calls") or ()]


def call_values(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; what is no object as the whole text."""
    values = _values(function)
    return values if isinstance(values, dict) else {"arguments": values}


def _values(function: Mapping[str, Any]) -> Any:
    """Read the arguments; numbers as JavaScript has them, because agents in it send 1.0 back as 1."""
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments, parse_float=_number, parse_int=_number)
    except ValueError:
        return arguments


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value
