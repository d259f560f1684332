"""Keys and values of many sessions in fixed slots, seen by transformers as one `Cache`.

Reads new keys and values from each attention layer and writes them at per-row positions; hands back the keys and values
that those rows attend to. Invariant: cache index j of a slot belongs to the token at position j, so a plain
``key position <= query position`` mask is causal, and what lies beyond a slot's length is never attended to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True)
class ForwardPlan:
    """Where one forward writes and what it reads."""

    rows: torch.Tensor
    """[rows] slot of each row."""
    positions: torch.Tensor
    """[rows, length] position of each token; padding goes to the scratch position."""
    num_keys: int
    """Keys [0, num_keys) are read."""
    span: tuple[int, int] | None
    """Slots [first, last) are read in place; None: the rows' slots are gathered."""


class SlotCache(Cache):
    """Static slots: one tensor [layers, 2, slots, kv_heads, max_len + 1, head_dim]; the last position is scratch."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        max_len_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layers=[])
        self.scratch_position = max_len_tokens
        # Zeros, not empty: a masked NaN would still poison the weighted sum.
        self.storage = torch.zeros(
            num_layers, 2, num_slots, num_kv_heads, max_len_tokens + 1, head_dim, dtype=dtype, device=device
        )
        self._layers = [(self.storage[layer, 0], self.storage[layer, 1]) for layer in range(num_layers)]
        self._plan: ForwardPlan | None = None

    def prepare(self, plan: ForwardPlan) -> None:
        """Set the plan of the next forward."""
        self._plan = plan

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, kv_heads, length, head_dim] and return [rows or span, kv_heads, num_keys, head_dim] twice."""
        assert self._plan is not None
        keys, values = self._layers[layer_idx]
        return self._write_and_read(keys, key_states), self._write_and_read(values, value_states)

    def _write_and_read(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        assert plan is not None
        if new.shape[2] == 1:
            stored[plan.rows, :, plan.positions[:, 0]] = new[:, :, 0].to(stored.dtype)
        else:
            stored[plan.rows[:, None], :, plan.positions] = new.transpose(1, 2).to(stored.dtype)
        if plan.span is None:
            return stored[:, :, : plan.num_keys].index_select(0, plan.rows)
        return stored[plan.span[0] : plan.span[1], :, : plan.num_keys]

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` positions of slot ``source`` to slot ``target``."""
        self.storage[:, :, target, :, :num_tokens] = self.storage[:, :, source, :, :num_tokens]
