"""Grouped attention against repeated heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from repairgym.errors import ConfigError
from repairgym.inference.engine.forward import check_length, grouped_attention


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


@pytest.mark.parametrize(("kind", "positions"), [("longrope", 32), ("dynamic", 128), ("default", 128)])
def test_slots_are_as_long_as_positions_that_do_not_depend_on_other_slots(kind: str, positions: int) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, **factors}
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, rope_parameters=rope,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    check_length(model, positions)
    with pytest.raises(ConfigError, match=f"the model takes {positions}"):
        check_length(model, positions + 1)
