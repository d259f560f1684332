"""Batches of prompts."""

from __future__ import annotations

import numpy as np

from repairgym.inference.engine.admission import PrefillRow, split_batches
from repairgym.inference.engine.requests import Request


def test_batches_hold_rows_of_similar_length() -> None:
    def row(length: int) -> PrefillRow:
        return PrefillRow(Request("s", np.zeros(length, np.int32), 1, frozenset(), 1.0, np.zeros(1)), 0)

    batches = [
        [row.num_new for row in batch] for batch in split_batches([row(n) for n in (200, 10, 12, 210, 900)], 512)
    ]
    assert batches == [[10, 12], [200, 210], [900]]
