"""A tokenizer trained on a few lines of code."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from repairgym.inference.tokenizer import train_tokenizer

SOURCE = '''
def clamp(value, low, high):
    """Limit value to [low, high]."""
    if value < low:
        return low
    return high if value > high else value
'''


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([SOURCE] * 20, vocab_size=400, num_line_labels=40)
