"""Does a server sample what it says? A test of its replies, for servers that ignore what they are asked.

Reads single tokens drawn after the same prompt, with their log-probabilities; makes the probability that an honest
server gives such draws. The first half of the draws says which tokens are looked for and how likely the server calls
them; of the second half those are counted. A server that takes only the likeliest tokens, or a lower temperature,
repeats too often what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NOISE = 0.1
"""Sums of reported probabilities may be this far above 1: in bfloat16 logits move by 0.06 from batch to batch ..."""
_MARGIN = 1e-3
"""... and are never taken for certain."""


@dataclass(frozen=True)
class Draw:
    """One sampled token."""

    token_id: int
    log_prob: float
    """Natural, as the server reports it."""


def chance_of(prompts: Sequence[Sequence[Draw]]) -> float:
    """Probability of a count at least as odd from a server that samples with the log-probabilities that it reports.

    Args:
        prompts: Draws after each prompt, all with the same prompt; at least some dozen of each.

    Returns:
        Two-sided, from the exact distribution of how many draws of the second halves were seen in the first halves: a
        sum of binomials, one for each prompt. 0.0 where different tokens are reported with more than all probability.
    """
    distribution, num_seen = np.ones(1), 0
    for draws in prompts:
        first, second = draws[: len(draws) // 2], draws[len(draws) // 2 :]
        reported = {draw.token_id: math.exp(draw.log_prob) for draw in first}
        total = sum(reported.values())
        if total > 1.0 + _NOISE:
            return 0.0
        num_seen += sum(draw.token_id in reported for draw in second)
        distribution = np.convolve(distribution, _binomial(len(second), min(max(total, _MARGIN), 1.0 - _MARGIN)))
    tails = distribution[num_seen:].sum(), distribution[: num_seen + 1].sum()
    return float(min(1.0, 2.0 * min(tails)))


def _binomial(num: int, chance: float) -> np.ndarray:
    """[num + 1] probability of each number of successes."""
    counts = range(num + 1)
    return np.array([math.comb(num, count) * chance**count * (1.0 - chance) ** (num - count) for count in counts])
