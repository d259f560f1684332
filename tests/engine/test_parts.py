"""The engine's parts by themselves: attention, sampling, slots, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from repairgym.inference.engine.admission import PrefillRow, split_batches
from repairgym.inference.engine.attention import grouped_attention
from repairgym.inference.engine.requests import Request
from repairgym.inference.engine.sampling import draw_uniforms, sample_tokens
from repairgym.inference.engine.slots import SlotTable


def repeated(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The textbook way: one copy of keys and values per query head."""
    group = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("is_bool", [True, False])
def test_grouped_attention_equals_repeated_heads(length: int, is_bool: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 6, length, 8), torch.randn(3, 2, 11, 8), torch.randn(3, 2, 11, 8)
    seen = torch.rand(3, 1, length, 11) < 0.7
    seen[..., 0] = True
    mask = seen if is_bool else torch.zeros(seen.shape).masked_fill(~seen, -1e30)
    got, _ = grouped_attention(torch.nn.Module(), query, key, value, mask)
    assert torch.allclose(got, repeated(query, key, value, mask), atol=1e-6)


def test_grouped_attention_over_a_run_of_slots() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 1, 8), torch.randn(5, 2, 7, 8), torch.randn(5, 2, 7, 8)
    rows = torch.tensor([1, 4])
    mask = torch.zeros(5, 1, 1, 7)
    mask[1, ..., 3:] = -1e30
    got, _ = grouped_attention(torch.nn.Module(), query, key, value, mask, slot_rows=rows)
    assert torch.allclose(got, repeated(query, key[rows], value[rows], mask[rows]), atol=1e-6)


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, float("-inf")])
    count = 20_000
    uniforms = torch.from_numpy(draw_uniforms(0, 1, count))
    ids, log_probs = sample_tokens(logits.expand(count, 4), torch.full((count,), 0.7), uniforms)
    probs = torch.softmax(logits / 0.7, -1)
    frequency = torch.bincount(ids, minlength=4) / count
    assert torch.allclose(frequency, probs, atol=0.015)
    assert frequency[3] == 0
    assert torch.allclose(log_probs, probs.log()[ids], atol=1e-5)


def test_the_ends_of_the_uniform_range_are_tokens_of_positive_probability() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(2, 4)
    uniforms = torch.tensor([0.0, 1 - 2**-24], dtype=torch.float64)
    ids, _ = sample_tokens(logits, torch.ones(2), uniforms)
    assert ids.tolist() == [1, 2]


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
