"""Thoughts: what stands between ``<think>`` and ``</think>`` at the start of an answer is no part of the action.

Reads answers as text and as token ids; makes the part behind the thought. Invariant: ids are cut between tokens, never
encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

END = "</think>"


def without_thought(text: str) -> str:
    """What follows the thought: all of ``text`` when it has none."""
    before, end, after = text.partition(END)
    return after if end else before


def is_thinking(text: str) -> bool:
    """Whether ``text`` begins a thought and never ends it."""
    return text.lstrip().startswith("<think>") and END not in text


def count_thought_tokens(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> int:
    """How many of ``token_ids`` the thought takes; 0 without one.

    The largest number of tokens whose text ends inside or at the end of the thought: a token that also holds something
    of the action stays.
    """
    if END not in decode(list(token_ids)):
        return 0
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high + 1) // 2
        _, end, after = decode(list(token_ids[:middle])).partition(END)
        if end and after:
            high = middle - 1
        else:
            low = middle
    return low
