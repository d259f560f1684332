"""Sequences as a prefix forest: a common beginning is one segment.

Reads token ids; makes an order of the sequences, the number of tokens that neighbors share, and segments. Guarantees:
the order is lexicographic, so sequences with a common prefix are adjacent; a run of neighbors has as many distinct
tokens as the sum of its lengths minus the sum of its shared lengths; the result follows from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MIN_SAVED_TOKENS = 16
"""A smaller saving is not worth the calls that one more segment costs in every layer. Our choice."""


@dataclass(frozen=True)
class Segment:
    """A part of one or several sequences, between two branching points."""

    tokens: np.ndarray
    """[length] token ids, at least one."""
    position: int
    """Of the first token in its sequences."""
    parent: int
    """Index of the segment before it, -1 for the first of a sequence."""


@dataclass(frozen=True)
class Forest:
    """A run of sequences as segments, parents before children."""

    segments: tuple[Segment, ...]
    paths: tuple[tuple[int, ...], ...]
    """Of each sequence: indices of its segments, in order."""


def lexicographic_order(sequences: Sequence[np.ndarray]) -> list[int]:
    """Return the indices of ``sequences`` in lexicographic order; the sort is stable."""
    # Big-endian bytes of numbers that are not negative compare like the numbers.
    return sorted(range(len(sequences)), key=lambda index: sequences[index].astype(">u4").tobytes())


def shared_lengths(sequences: Sequence[np.ndarray], min_saved_tokens: int = MIN_SAVED_TOKENS) -> np.ndarray:
    """Count the tokens that each sequence shares with the one before it, where sharing pays.

    Args:
        sequences: In lexicographic order.
        min_saved_tokens: A branching point that saves fewer tokens than this is ignored.

    Returns:
        [sequences] int64; 0 for the first.
    """
    common = np.zeros(len(sequences), dtype=np.int64)
    for index in range(1, len(sequences)):
        common[index] = common_length(sequences[index - 1], sequences[index])
    shared = np.zeros_like(common)
    waiting = [(0, len(sequences), 0)]
    while waiting:
        first, end, depth = waiting.pop()
        if end - first < 2:
            continue
        lowest = int(common[first + 1 : end].min())
        is_worth = (end - first - 1) * (lowest - depth) >= min_saved_tokens
        depth = lowest if is_worth else depth
        parts = _parts(common, first, end, lowest)
        shared[[begin for begin, _ in parts[1:]]] = depth
        waiting += [(begin, stop, depth) for begin, stop in parts]
    return shared


def cut_runs(lengths: np.ndarray, shared: np.ndarray, max_tokens: int) -> list[slice]:
    """Cut sequences into runs of neighbors with at most ``max_tokens`` distinct tokens.

    A longer sequence is a run of its own. A full run ends at the place in its second half with the least sharing, so
    that as little as possible is computed twice.
    """
    runs: list[slice] = []
    first = 0
    while first < len(lengths):
        size = int(lengths[first])
        half = end = first + 1
        while end < len(lengths) and size + lengths[end] - shared[end] <= max_tokens:
            size += int(lengths[end] - shared[end])
            end += 1
            half = end if 2 * size <= max_tokens else half
        if end < len(lengths):
            candidates = shared[half : end + 1]
            end = half + len(candidates) - 1 - int(candidates[::-1].argmin())
        runs.append(slice(first, end))
        first = end
    return runs


def grow(sequences: Sequence[np.ndarray], shared: np.ndarray) -> Forest:
    """Build the forest of a run in lexicographic order; ``shared[0]`` is ignored."""
    segments: list[Segment] = []
    paths: list[tuple[int, ...]] = [()] * len(sequences)

    def add(index: int, start: int, stop: int, path: tuple[int, ...]) -> tuple[int, ...]:
        if start == stop:
            return path
        segments.append(Segment(sequences[index][start:stop], start, path[-1] if path else -1))
        return (*path, len(segments) - 1)

    waiting: list[tuple[int, int, int, tuple[int, ...]]] = [(0, len(sequences), 0, ())]
    while waiting:
        first, end, depth, path = waiting.pop()
        if end - first == 1:
            paths[first] = add(first, depth, len(sequences[first]), path)
            continue
        lowest = int(shared[first + 1 : end].min())
        path = add(first, depth, lowest, path)
        waiting += [(begin, stop, lowest, path) for begin, stop in _parts(shared, first, end, lowest)][::-1]
    return Forest(tuple(segments), tuple(paths))


def _parts(shared: np.ndarray, first: int, end: int, lowest: int) -> list[tuple[int, int]]:
    """Split ``[first, end)`` into runs at the places where neighbors share exactly ``lowest`` tokens."""
    cuts = [first, *(first + 1 + np.flatnonzero(shared[first + 1 : end] == lowest)).tolist(), end]
    return list(pairwise(cuts))


def common_length(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
