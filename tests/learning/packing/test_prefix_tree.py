"""The forest of random sequences holds each of them, and each distinct token once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from repairgym.learning.packing.prefix_tree import cut_runs, grow, lexicographic_order, shared_lengths

SEQUENCES = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=12,
)


@given(SEQUENCES, st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_paths_spell_the_sequences(sequences: list[np.ndarray], min_saved_tokens: int) -> None:
    ordered = [sequences[at] for at in lexicographic_order(sequences)]
    shared = shared_lengths(ordered, min_saved_tokens)
    forest = grow(ordered, shared)
    for sequence, path in zip(ordered, forest.paths, strict=True):
        assert np.concatenate([forest.segments[at].tokens for at in path]).tolist() == sequence.tolist()
        for before, at in zip((-1, *path), path, strict=False):
            assert forest.segments[at].parent == before < at
        positions = [forest.segments[at].position for at in path]
        assert positions == [0, *np.cumsum([len(forest.segments[at].tokens) for at in path])[:-1]]
    num_tokens = sum(len(segment.tokens) for segment in forest.segments)
    assert num_tokens == sum(map(len, ordered)) - int(shared.sum())
    distinct = {tuple(sequence[: end + 1].tolist()) for sequence in ordered for end in range(len(sequence))}
    assert num_tokens >= len(distinct)
    if min_saved_tokens == 1:
        assert num_tokens == len(distinct)


@given(SEQUENCES, st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_runs_keep_the_budget_and_hold_every_sequence_once(sequences: list[np.ndarray], max_tokens: int) -> None:
    ordered = [sequences[at] for at in lexicographic_order(sequences)]
    shared = shared_lengths(ordered, 1)
    lengths = np.array([len(sequence) for sequence in ordered])
    runs = cut_runs(lengths, shared, max_tokens)
    assert [at for run in runs for at in range(run.start, run.stop)] == list(range(len(ordered)))
    for run in runs:
        forest = grow(ordered[run], shared[run])
        size = sum(len(segment.tokens) for segment in forest.segments)
        assert size <= max_tokens or run.stop - run.start == 1


def test_a_branch_that_saves_little_is_not_made() -> None:
    start = list(range(40))
    ordered = [np.array(start + tail, np.int32) for tail in ([50, 51, 52], [50, 51, 60], [70, 71, 72])]
    assert shared_lengths(ordered, 16).tolist() == [0, 40, 40]
    assert shared_lengths(ordered, 1).tolist() == [0, 42, 40]
