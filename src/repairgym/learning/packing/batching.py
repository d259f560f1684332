"""Micro-batches in which every distinct token is computed once: packs of the segments of a prefix forest.

Reads samples; makes `MicroBatch` objects. A common beginning of sequences is one segment: sequences are sorted, so that
common prefixes are adjacent, and a run of neighbors has as many distinct tokens as the sum of its lengths minus the sum
of its shared lengths. Guarantees: every learned token of every sample is in exactly one micro-batch, and all of a
sample in the same; a micro-batch stays within the token budget unless a single sample exceeds it; nothing is padded;
the result depends on the samples and the budget alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from repairgym.learning.samples import Sample

MIN_SAVED_TOKENS = 16
"""A smaller saving is not worth the calls that one more segment costs in every layer. Our choice."""


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass over T tokens, with M predictions for N learned tokens of all samples.

    M is below N where samples share a learned token: the same place and the same next token.
    """

    ids: torch.Tensor
    """[T] int64, segment after segment."""
    position: torch.Tensor
    """[T] int64 place of each token in its sequences."""
    lengths: tuple[int, ...]
    """Tokens of each segment."""
    parents: tuple[int, ...]
    """Segment before each segment, -1 for none; parents come first."""
    source: torch.Tensor
    """[M] index in ``ids`` whose hidden state predicts the target."""
    target: torch.Tensor
    """[M] token id."""
    learned: torch.Tensor
    """[N] index among the M of each learned token."""
    old_log_prob: torch.Tensor
    """[N] float32."""
    advantage: torch.Tensor
    """[N] float32."""
    weight: torch.Tensor
    """[N] float32."""
    row: torch.Tensor
    """[N] int64 sample of each learned token, ascending."""
    samples: tuple[Sample, ...]
    """In the order of ``row``."""
    reference_log_prob: torch.Tensor | None = None
    """[N] float32; None where the samples have none, as with the next two."""
    old_value: torch.Tensor | None = None
    """[N] float32."""
    value_target: torch.Tensor | None = None
    """[N] float32."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens computed."""
        return len(self.ids)


def pack(samples: Sequence[Sample], max_tokens: int, *, is_sharing: bool = True) -> list[MicroBatch]:
    """Pack samples into micro-batches of ``max_tokens``; those without learned tokens are left out.

    Common beginnings are shared: prompts, turns and, where histories fork, actions. Without ``is_sharing`` every sample
    is computed separately (same results, more work). Tokens behind the last learned one are not computed.
    """
    learned = [sample for sample in samples if sample.num_learned]
    sequences = [sample.token_id[: sample.num_to_compute] for sample in learned]
    order = lexicographic_order(sequences)
    sequences = [sequences[at] for at in order]
    shared = shared_lengths(sequences) if is_sharing else np.zeros(len(sequences), dtype=np.int64)
    runs = cut_runs(np.array([len(sequence) for sequence in sequences]), shared, max_tokens)
    return [_build([learned[at] for at in order[run]], sequences[run], shared[run]) for run in runs]


def _build(samples: Sequence[Sample], sequences: Sequence[np.ndarray], shared: np.ndarray) -> MicroBatch:
    forest = grow(sequences, shared)
    lengths = [len(segment.tokens) for segment in forest.segments]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([segment.tokens for segment in forest.segments]).astype(np.int64)
    places = [
        np.concatenate([np.arange(starts[at], starts[at + 1]) for at in path]) for path in forest.paths
    ]  # of each sample: where its tokens are in the pack
    learned = [np.flatnonzero(sample.weight) for sample in samples]
    source = np.concatenate([place[at - 1] for place, at in zip(places, learned, strict=True)])
    target = np.concatenate([sample.token_id[at] for sample, at in zip(samples, learned, strict=True)])
    pairs, which = np.unique(np.stack([source, target]), axis=1, return_inverse=True)
    return MicroBatch(
        ids=torch.from_numpy(ids),
        position=torch.from_numpy(
            np.concatenate([np.arange(s.position, s.position + len(s.tokens)) for s in forest.segments])
        ),
        lengths=tuple(lengths),
        parents=tuple(segment.parent for segment in forest.segments),
        source=torch.from_numpy(pairs[0].copy()),
        target=torch.from_numpy(pairs[1].copy()),
        learned=torch.from_numpy(which.reshape(-1)),
        old_log_prob=_gather([sample.old_log_prob for sample in samples], learned),
        advantage=_gather(
            [np.broadcast_to(np.float32(sample.advantage), sample.weight.shape) for sample in samples], learned
        ),
        weight=_gather([sample.weight for sample in samples], learned),
        row=torch.from_numpy(np.repeat(np.arange(len(samples)), [len(at) for at in learned])),
        samples=tuple(samples),
        reference_log_prob=_gather_optional([sample.reference_log_prob for sample in samples], learned),
        old_value=_gather_optional([sample.old_value for sample in samples], learned),
        value_target=_gather_optional([sample.value_target for sample in samples], learned),
    )


def _gather(arrays: Sequence[np.ndarray], positions: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([array[at] for array, at in zip(arrays, positions, strict=True)]))


def _gather_optional(arrays: Sequence[np.ndarray | None], positions: Sequence[np.ndarray]) -> torch.Tensor | None:
    """Gather the arrays; None if no sample has one; `ValueError` if only some have one."""
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    if len(present) != len(arrays):
        raise ValueError(f"{len(present)} of {len(arrays)} samples of a batch have an array that the others lack")
    return _gather(present, positions)


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
    """Count the tokens that each of the sorted sequences shares with the one before it: [sequences] int64, 0 first.

    A branching point that saves fewer than ``min_saved_tokens`` is ignored.
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
