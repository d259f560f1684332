"""Answers of a model, split into thought and what counts: by tokens where a thought's marks are tokens.

Reads sampled ids; makes an `Answer`. Guarantees: text of a thought is no part of `Answer.text`, so that no call in it
is ever made; ids are cut between tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from repairgym.inference.chat_template import THOUGHT_END, THOUGHT_START, ChatTemplate

_CALL_START = re.compile(r"^```|<tool_call>|<function=|<\w+>\s*\{|^\{", re.MULTILINE)
_LATER_THOUGHT = re.compile(rf"^[ \t]*{THOUGHT_START}.*?(?:{THOUGHT_END}|\Z)", re.MULTILINE | re.DOTALL)
_CHANNEL = re.compile(r"(?:<\|start\|>assistant)?([^<]*)<\|channel\|>(\w+)(.*?)<\|message\|>", re.DOTALL)


class Answer(NamedTuple):
    """An answer, as a parser of actions reads it."""

    text: str
    """The part behind the thought."""
    is_thinking: bool
    """The thought does not end."""
    num_thought_tokens: int
    """Leading tokens of a thought that ends; a token that also holds a part of the text is none of them."""


def has_thought(action: str) -> bool:
    """Return True where an action, as text, begins with a thought that has words; the mark may be in the prompt."""
    thought, end, _ = action.partition(THOUGHT_END)
    is_thought = bool(end) or action.lstrip().startswith(THOUGHT_START)
    return is_thought and bool(thought.replace(THOUGHT_START, "").strip())


class AnswerReader:
    """Reads the answers of one model."""

    def __init__(self, template: ChatTemplate, vocabulary: Mapping[str, int], decode: Callable[[Sequence[int]], str]):
        """``decode`` returns all text of ids, special tokens included."""
        self._template = template
        self._decode = decode
        self._end_id = vocabulary.get(THOUGHT_END)
        self._channel_ids = tuple(vocabulary.get(f"<|{name}|>", -1) for name in ("start", "channel", "end"))

    def read(self, ids: Sequence[int]) -> Answer:
        """Read an answer without its stop token."""
        if self._template.has_channels:
            return self._read_channels(ids)
        text = self._decode(ids)
        num_thought = 0
        is_opened = self._template.opens_thought
        while is_opened or text.lstrip().startswith(THOUGHT_START):
            num_tokens = self._num_thought_tokens(ids[num_thought:])
            if num_tokens is None:
                return Answer("", is_thinking=True, num_thought_tokens=0)
            num_thought += num_tokens
            # Without a token for the mark, a token may hold the end of the thought and the start of the text.
            text = text.partition(THOUGHT_END)[2] if self._end_id is None else self._decode(ids[num_thought:])
            is_opened = False
        return Answer(_without_later_thoughts(text), is_thinking=False, num_thought_tokens=num_thought)

    def _num_thought_tokens(self, ids: Sequence[int]) -> int | None:
        """Count the tokens up to the end of the thought; None where it does not end."""
        if self._end_id is not None:
            return ids.index(self._end_id) + 1 if self._end_id in ids else None
        return count_thought_tokens(ids, self._decode) if THOUGHT_END in self._decode(ids) else None

    def _read_channels(self, ids: Sequence[int]) -> Answer:
        """Read the messages of a gpt-oss answer: *analysis* is thought, the rest text and calls."""
        start_id, channel_id, end_id = self._channel_ids
        starts = [0, *(position for position, token_id in enumerate(ids) if token_id == start_id)]
        parts = []
        num_thought, is_thinking = 0, False
        for first, last in zip(starts, [*starts[1:], len(ids)], strict=True):
            body = self._decode([token_id for token_id in ids[first:last] if token_id != end_id])
            header = _CHANNEL.match(body)
            if header is None or header[2] != "analysis" or "to=" in header[1] + header[3]:
                is_call = header is not None and "to=" in header[1] + header[3]
                parts.append(body.removeprefix("<|start|>assistant") if is_call or not header else body[header.end() :])
            elif not parts:
                num_thought, is_thinking = last, last == len(ids)
        if parts and num_thought:
            # The role of the next message, which the prompt has already, goes with the thought.
            num_thought = ids.index(channel_id, num_thought) if channel_id in ids[num_thought:] else num_thought
        return Answer("\n".join(part for part in parts if part), is_thinking, 0 if is_thinking else num_thought)


def _without_later_thoughts(text: str) -> str:
    """Cut thoughts that begin a line before the first call; behind that, the marks may be content."""
    while thought := _LATER_THOUGHT.search(text):
        call = _CALL_START.search(text)
        if call and call.start() < thought.start():
            break
        text = text[: thought.start()] + text[thought.end() :]
    return text


def count_thought_tokens(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Count the tokens of the thought; 0 without one; a token that also holds a part of the action stays."""
    if THOUGHT_END not in decode(token_ids):
        return 0
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high + 1) // 2
        _, end, after = decode(token_ids[:middle]).partition(THOUGHT_END)
        if end and after:
            high = middle - 1
        else:
            low = middle
    return low
