"""Micro-batches in which every distinct token is computed once.

Reads samples; makes `MicroBatch` objects: flat packs of the segments of a prefix forest. Guarantees: every learned
token of every sample is in exactly one micro-batch, and all of a sample in the same; a micro-batch stays within the
token budget unless a single sample exceeds it; nothing is padded; the result depends on the samples and the budget
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from repairgym.learning.packing.prefix_tree import cut_runs, grow, lexicographic_order, shared_lengths
from repairgym.learning.samples import Sample


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
    """Pack samples into micro-batches.

    Args:
        samples: In any order; those without learned tokens are left out. Common beginnings are shared: prompts, turns
            and, where histories fork, actions.
        max_tokens: Budget of one micro-batch.
        is_sharing: False computes every sample separately (same results, more work).
    """
    learned = [sample for sample in samples if sample.num_learned]
    sequences = [sample.token_id for sample in learned]
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
    """Gather the arrays; None if no sample has one.

    Raises:
        ValueError: only some samples have the array.
    """
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    if len(present) != len(arrays):
        raise ValueError(f"{len(present)} of {len(arrays)} samples of a batch have an array that the others lack")
    return _gather(present, positions)
