"""Values of visited states, counted over a group of episodes: a critic without parameters.

Reads the states in which the turns of a group's members start, and their rewards; makes the value of each turn's state.
Guarantees: a member counts once per state, however often it comes back; a state that no other member visits has the
value of the whole group, up to the member's own reward where that is counted.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np


def state_values(
    states: Sequence[Sequence[str]], rewards: Sequence[float], *, prior_weight: float, is_own_counted: bool
) -> list[np.ndarray]:
    """Return, for each member, V(s) = (sum of R_j + k b) / (n + k) of the state s of each of its turns.

    j runs over the n members that visit s, b is the mean reward of the group and k = ``prior_weight`` counts as that
    many visits. The member itself is in both means or, left out, in neither. At least two members.
    """
    counts: Counter[str] = Counter()
    sums: defaultdict[str, float] = defaultdict(float)
    for visited, reward in zip(states, rewards, strict=True):
        for state in set(visited):
            counts[state] += 1
            sums[state] += reward
    left_out = 0 if is_own_counted else 1
    values = []
    for visited, reward in zip(states, rewards, strict=True):
        mean = (sum(rewards) - left_out * reward) / (len(rewards) - left_out)
        num_visits = np.array([counts[state] - left_out for state in visited], np.float64)
        reward_sums = np.array([sums[state] - left_out * reward for state in visited], np.float64)
        values.append((reward_sums + prior_weight * mean) / (num_visits + prior_weight))
    return values


def shared_turns(states: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return, for each member, which turns ([turns] bool) start in a state that another member visits, too."""
    counts = Counter(state for visited in states for state in set(visited))
    return [np.array([counts[state] > 1 for state in visited], bool) for visited in states]
