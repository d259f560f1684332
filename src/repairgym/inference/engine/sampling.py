"""Choosing tokens: exact log-probabilities and randomness that belongs to the request, not to the batch.

Reads logits and one uniform number per row; makes token ids and their log-probabilities. Invariant: the same request
with the same seed draws the same numbers whatever else is in the batch.
"""

from __future__ import annotations

import numpy as np
import torch

_NUM_UNIFORM_LEVELS = 1 << 24


def draw_uniforms(seed: int, prompt_length: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1) for one generation.

    The prompt length enters the seed, so the turns of an episode with one seed draw different numbers. Values are
    multiples of 2^-24: a value times the total probability stays below the total in float64.
    """
    generator = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, prompt_length])
    return generator.integers(0, _NUM_UNIFORM_LEVELS, size=count) / _NUM_UNIFORM_LEVELS


def sample_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: [rows, vocab], any float dtype.
        temperatures: [rows] float32; 0 means the most likely token.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        Token ids [rows] int64 and log-probabilities [rows] float32: the float32 log-softmax of logits/temperature at
        the token (0.0 at temperature 0, where the distribution is a single point).
    """
    is_greedy = temperatures == 0
    scaled = logits.float() / torch.where(is_greedy, 1.0, temperatures)[:, None]
    log_probs = torch.log_softmax(scaled, dim=-1)
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms * cumulative[:, -1]
    sampled = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    if bool(is_greedy.any()):
        sampled = torch.where(is_greedy, logits.argmax(dim=-1), sampled)
    chosen = log_probs.gather(1, sampled[:, None])[:, 0]
    return sampled, torch.where(is_greedy, 0.0, chosen)
