"""Values of visited states, counted over a group of episodes: a critic without parameters.

Reads the states in which the turns of a group's members start, and their rewards; makes the value of each turn's state.
Guarantees: a member counts once per state, however often it comes back, and a branch only where it acted itself: before
that it exists because of its parent's actions, and a baseline must not depend on these; a state that no other member
visits has the value of the whole group, up to the member's own reward where that is counted.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np


def state_values(
    states: Sequence[Sequence[str]],
    rewards: Sequence[float],
    *,
    prior_weight: float,
    is_own_counted: bool,
    num_shared: Sequence[int] = (),
) -> list[np.ndarray]:
    """Return, for each member, V(s) = (sum of R_j + k b) / (n + k) of the state s of each of its turns.

    j runs over the n members that visit s, b is the mean reward of the group and k = ``prior_weight`` counts as that
    many visits. The member itself is in both means or, left out, in neither. At least two members. ``num_shared``:
    turns that a branch shares with its parent, where it does not count; empty: no member is a branch.
    """
    own = [set(visited[first:]) for visited, first in zip(states, num_shared or (0,) * len(states), strict=True)]
    counts: Counter[str] = Counter()
    sums: defaultdict[str, float] = defaultdict(float)
    for acted, reward in zip(own, rewards, strict=True):
        for state in acted:
            counts[state] += 1
            sums[state] += reward
    left_out = 0 if is_own_counted else 1
    values = []
    for visited, reward, acted in zip(states, rewards, own, strict=True):
        mean = (sum(rewards) - left_out * reward) / (len(rewards) - left_out)
        num_own = [left_out * (state in acted) for state in visited]
        num_visits = np.array([counts[state] - num for state, num in zip(visited, num_own, strict=True)], np.float64)
        reward_sums = np.array([sums[state] - num * reward for state, num in zip(visited, num_own, strict=True)])
        values.append((reward_sums + prior_weight * mean) / (num_visits + prior_weight))
    return values


def shared_turns(states: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return, for each member, which turns ([turns] bool) start in a state that another member visits, too."""
    counts = Counter(state for visited in states for state in set(visited))
    return [np.array([counts[state] > 1 for state in visited], bool) for visited in states]
