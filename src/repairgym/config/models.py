"""What a model and its inference engine look like: read by `models/` and `engine/`, imports neither.

Invariants: frozen; every size is positive; nothing here needs torch.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from repairgym.records import Record

DtypeName = Literal["float32", "bfloat16"]


class ModelConfig(Record):
    """A Qwen3-architecture causal LM made from scratch (design decision 9)."""

    vocab_size: PositiveInt = 2048
    hidden_size: PositiveInt = 192
    num_layers: PositiveInt = 4
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 48
    intermediate_size: PositiveInt = 512
    max_len_tokens: PositiveInt = 1024
    rope_theta: float = 10_000.0
    is_tied: bool = True
    """Input and output embeddings are one matrix."""
    seed: int = 0

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}; "
                "grouped-query attention needs equal groups"
            )
        return self


class EngineConfig(Record):
    """Bounds of the embedded inference engine."""

    num_slots: PositiveInt = 64
    """Sessions whose keys and values are kept at one time; more sessions evict the least recently used."""
    max_len_tokens: PositiveInt = 1024
    """Longest prompt plus completion."""
    prefill_tokens: PositiveInt = 2048
    """Padded tokens of one prefill forward; longer prompts are computed in chunks."""
    min_share_tokens: PositiveInt = 16
    """A common prefix shorter than this is computed again instead of copied or waited for."""
    admit_fraction: float = Field(default=0.125, ge=0.0, le=1.0)
    """New requests wait until they are this share of the running rows ..."""
    admit_wait_steps: int = Field(default=3, ge=0)
    """... or until this many decode steps have passed."""
    is_batch_invariant: bool = False
    """Every session is computed alone and shares no prefix, so its numbers are the same, bit for bit, whatever runs
    beside it and whatever was killed before (CPU, one thread). Several times slower."""
