"""Trees of a group: which leaves lie below a turn, and what that makes of their rewards.

Reads the shape of a group (parents and shared turns of its members) and one number per leaf; makes numbers per turn.
Guarantees: a leaf lies below each turn of its own path, and only below these; leaves without a number count nowhere.
"""

from collections.abc import Sequence

import numpy as np


def leaves_below(parents: Sequence[int], num_shared: Sequence[int], num_turns: Sequence[int]) -> list[np.ndarray]:
    """Return, for each member, the members whose episodes go through each of its turns ([turns, members] bool).

    ``parents``: index of the member whose first ``num_shared`` turns a member begins with; -1: it has none here.
    """
    size = len(parents)
    below = [np.zeros((num, size), bool) for num in num_turns]
    for leaf in range(size):
        member, end = leaf, num_turns[leaf]
        while member >= 0:
            below[member][:end, leaf] = True
            end, member = min(end, num_shared[member]), parents[member]
    # A parent shares fewer turns with its own parent than its branches do with it, so it comes first.
    for member in sorted(range(size), key=lambda member: num_shared[member]):
        if parents[member] >= 0:
            below[member][: num_shared[member]] = below[parents[member]][: num_shared[member]]
    return below


def roots(parents: Sequence[int]) -> list[int]:
    """Return the chain that each member's tree began with."""
    chains = []
    for member in range(len(parents)):
        while parents[member] >= 0:
            member = parents[member]
        chains.append(member)
    return chains


def means_below(below: np.ndarray, numbers: Sequence[float | None], leaf_power: float) -> np.ndarray:
    """Return the mean over the leaves below each turn times their number to the power of ``leaf_power`` ([turns])."""
    known = np.array([number is not None for number in numbers])
    filled = np.array([0.0 if number is None else number for number in numbers])
    num_leaves = np.maximum((below & known).sum(axis=1), 1).astype(np.float64)
    means: np.ndarray = (below & known) @ filled / num_leaves
    means *= num_leaves**leaf_power
    return means


def segment_gains(
    below: np.ndarray, rewards: Sequence[float | None], baseline: float, global_weight: float
) -> np.ndarray:
    """Return (V(s) - V(parent)) + w (V(s) - b) of the segment s of each turn ([turns]).

    A segment is a run of turns with the same leaves below, V their mean reward; the first one's parent is worth the
    ``baseline`` b.
    """
    value = means_below(below, rewards, 0.0)
    begins = np.append(True, (below[1:] != below[:-1]).any(axis=1))[: len(below)]
    before = np.append(baseline, value[:-1])[: len(below)]
    # The value before a segment holds for all of its turns.
    parent = before[np.maximum.accumulate(np.where(begins, np.arange(len(below)), 0))] if len(below) else before
    gains: np.ndarray = (value - parent) + global_weight * (value - baseline)
    return gains
