"""Does a server sample what it says? A test of its replies, for servers that ignore what they are asked.

Reads single tokens drawn after the same prompt, with their log-probabilities; makes the probability that an honest
server gives such draws. The first half of the draws says which tokens are looked for and how likely the server calls
them; the second half is counted. A server that takes only the likeliest tokens, or another temperature, repeats too
often what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_MIN_EXPECTED = 5.0
"""Draws that a bin must expect for Pearson's statistic to be near its limit."""
_SUM_NOISE = 1e-2


@dataclass(frozen=True)
class Draw:
    """One sampled token."""

    token_id: int
    log_prob: float
    """Natural, as the server reports it."""


def chance_of(prompts: Sequence[Sequence[Draw]]) -> float:
    """Probability of draws at least as odd from a server that samples with the log-probabilities that it reports.

    Args:
        prompts: Draws after each prompt, all with the same prompt; at least some dozen of each.

    Returns:
        From Pearson's chi-squared statistic, added up over the prompts; 1.0 where nothing can be told, 0.0 where the
        reported probabilities of different tokens add up to more than 1.
    """
    statistic, freedom = 0.0, 0
    for draws in prompts:
        bins = _bins(draws[: len(draws) // 2], draws[len(draws) // 2 :])
        if bins is None:
            return 0.0
        statistic += sum((observed - expected) ** 2 / expected for expected, observed in bins)
        freedom += len(bins) - 1
    if freedom < 1:
        return 1.0
    survival = torch.special.gammaincc(torch.tensor(freedom / 2.0).double(), torch.tensor(statistic / 2.0).double())
    return float(survival)


def _bins(first: Sequence[Draw], second: Sequence[Draw]) -> list[tuple[float, int]] | None:
    """(expected, observed) numbers of the second half: likely tokens one by one, the others together.

    None where the first half claims more than all probability.
    """
    claimed = {draw.token_id: math.exp(draw.log_prob) for draw in first}
    rest = 1.0 - sum(claimed.values())
    if rest < -_SUM_NOISE:
        return None
    counts = dict.fromkeys(claimed, 0)
    num_other = 0
    for draw in second:
        if draw.token_id in counts:
            counts[draw.token_id] += 1
        else:
            num_other += 1
    fine = [(claimed[token_id] * len(second), count) for token_id, count in counts.items()]
    fine.append((max(0.0, rest) * len(second), num_other))
    return _merged(sorted(fine))


def _merged(fine: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Neighbours added up until each bin expects enough."""
    bins: list[tuple[float, int]] = []
    expected, observed = 0.0, 0
    for one_expected, one_observed in fine:
        expected, observed = expected + one_expected, observed + one_observed
        if expected >= _MIN_EXPECTED:
            bins.append((expected, observed))
            expected, observed = 0.0, 0
    if bins and (expected or observed):
        last = bins.pop()
        bins.append((last[0] + expected, last[1] + observed))
    return bins
