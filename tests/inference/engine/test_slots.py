"""Slots of sessions."""

from __future__ import annotations

import numpy as np

from repairgym.inference.engine.requests import Request
from repairgym.inference.engine.slots import PrefillRow, SlotTable, split_batches


def test_slots_evict_the_least_recently_used_idle_session() -> None:
    slots = SlotTable(2, 8)
    first, second = slots.take("a", None), slots.take("b", None)
    assert (first, second) == (0, 1)
    slots.is_busy[:] = True
    assert slots.take("c", None) is None
    slots.rest(1)
    slots.rest(0)
    assert slots.take("c", None) == 1
    assert slots.find("b") is None
    assert slots.num_evictions == 1


def test_best_donor_never_counts_tokens_beyond_a_slots_length() -> None:
    slots = SlotTable(2, 8)
    slots.hold(0, 0, np.array([1, 2, 3, 4]))
    slots.hold(0, 0, np.array([1]))
    slots.hold(1, 0, np.array([1, 2]))
    assert slots.best_donor(np.array([1, 2, 3, 4])) == (1, 2)


def test_batches_hold_rows_of_similar_length() -> None:
    def row(length: int) -> PrefillRow:
        return PrefillRow(Request("s", np.zeros(length, np.int32), 1, frozenset(), 1.0, np.zeros(1)), 0)

    batches = [
        [row.num_new for row in batch] for batch in split_batches([row(n) for n in (200, 10, 12, 210, 900)], 512)
    ]
    assert batches == [[10, 12], [200, 210], [900]]
