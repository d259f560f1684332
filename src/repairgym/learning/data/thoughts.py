"""Thinking and no-thinking training sets: samples with their thoughts cut out.

Reads samples and the tokenizer's thought tokens; makes samples. Invariant: tokens are left out, never encoded again.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from transformers import PreTrainedTokenizerFast

from repairgym.errors import ConfigError
from repairgym.learning.data.samples import Sample

THOUGHT_START = "<think>"
THOUGHT_END = "</think>"


def thought_token_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[int, int]:
    """Ids of the tokens that open and close a thought.

    Raises:
        ConfigError: the tokenizer has no such tokens.
    """
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in (THOUGHT_START, THOUGHT_END) if token not in vocabulary]
    if missing:
        raise ConfigError(
            f"thoughts='remove' needs the tokens {THOUGHT_START} and {THOUGHT_END}, but the tokenizer lacks "
            f"{', '.join(missing)}; use a model that thinks, or thoughts='keep'"
        )
    return vocabulary[THOUGHT_START], vocabulary[THOUGHT_END]


def without_thoughts(sample: Sample, start_id: int, end_id: int) -> Sample:
    """``sample`` without its thoughts and their marks; a thought that is never closed goes on to the end."""
    is_start, is_end = sample.token_id == start_id, sample.token_id == end_id
    # Depth counts an end only after its token, so that the mark goes too.
    depth = np.cumsum(is_start) - np.cumsum(np.append(False, is_end[:-1]))
    kept = depth <= 0
    arrays = {
        field.name: value[kept]
        for field in fields(sample)
        if isinstance(value := getattr(sample, field.name), np.ndarray)
    }
    return replace(sample, **arrays)
