"""Policy shift: distance between the tool sequences of two policies (paper A).

Reads episodes of two policies; makes a `PolicyShift`. Guarantees: the distance is 0 for equal behavior and 1 without
a shared n-gram; the p-value is from a permutation test over episodes, within tasks where both policies have the same
tasks, so that different tasks never count as different behavior.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from repairgym.analysis.behavior import END, START
from repairgym.analysis.episodes import EpisodeFacts
from repairgym.records import Record

NUM_PERMUTATIONS = 999
_MAX_NAMED = 8


class NgramChange(Record):
    """Change of the share of one tool sequence."""

    tools: tuple[str, ...]
    before: float
    after: float


class PolicyShift(Record):
    """Jensen-Shannon divergence of tool n-grams."""

    n: int
    num_before: int
    """Episodes."""
    num_after: int
    divergence: float
    """In bits, 0 to 1."""
    p_value: float
    """Share of permutations at least as far apart, the observed one included: never 0."""
    is_within_tasks: bool
    """Episodes were exchanged within tasks."""
    changes: tuple[NgramChange, ...]
    """The n-grams whose shares changed most."""


def policy_shift(
    before: Sequence[EpisodeFacts],
    after: Sequence[EpisodeFacts],
    *,
    n: int = 2,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> PolicyShift | None:
    """Return the distance between two sets of episodes; None when one has no action.

    Args:
        before: Episodes of one policy.
        after: Episodes of the other.
        n: Length of the tool sequences; start and end count as tools.
        num_permutations: Of the test.
        seed: Of the permutations.
    """
    episodes = [*before, *after]
    counts, names = count_matrix(episodes, n)
    is_after = np.arange(len(episodes)) >= len(before)
    if not before or not after or not counts[is_after].sum() or not counts[~is_after].sum():
        return None
    is_within_tasks = {episode.task_id for episode in before} == {episode.task_id for episode in after}
    strata = np.unique([episode.task_id if is_within_tasks else "" for episode in episodes], return_inverse=True)[1]
    observed = _divergence(counts, is_after)
    generator = np.random.default_rng(seed)
    permuted = (_divergence(counts, _permuted(is_after, strata, generator)) for _ in range(num_permutations))
    num_as_far = 1 + sum(value >= observed - 1e-12 for value in permuted)
    return PolicyShift(
        n=n,
        num_before=len(before),
        num_after=len(after),
        divergence=observed,
        p_value=num_as_far / (num_permutations + 1),
        is_within_tasks=is_within_tasks,
        changes=_changes(counts, is_after, names),
    )


def count_matrix(episodes: Sequence[EpisodeFacts], n: int) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Count each n-gram in each episode, shape [num_episodes, num_ngrams]; also return the n-grams."""
    per_episode = [Counter(ngrams(episode.tools, n)) for episode in episodes]
    names = sorted(set(itertools.chain.from_iterable(per_episode)))
    place = {name: index for index, name in enumerate(names)}
    matrix = np.zeros((len(episodes), len(names)))
    for row, counts in enumerate(per_episode):
        for name, count in counts.items():
            matrix[row, place[name]] = count
    return matrix, names


def ngrams(tools: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return the sequences of ``n`` tools of an episode, start and end included.

    Raises:
        ValueError: ``n`` is not positive.
    """
    if n < 1:
        raise ValueError(f"got n-grams of {n} tools, expected at least 1")
    path = tuple(tools) if n == 1 else (START, *tools, END)
    return [path[start : start + n] for start in range(len(path) - n + 1)]


def jensen_shannon(left: np.ndarray, right: np.ndarray) -> float:
    """Return the Jensen-Shannon divergence of two distributions, in bits (Lin 1991)."""
    middle = (left + right) / 2.0
    return (_relative_entropy(left, middle) + _relative_entropy(right, middle)) / 2.0


def _relative_entropy(left: np.ndarray, right: np.ndarray) -> float:
    used = left > 0
    return float((left[used] * np.log2(left[used] / right[used])).sum())


def _divergence(counts: np.ndarray, is_after: np.ndarray) -> float:
    left, right = counts[~is_after].sum(axis=0), counts[is_after].sum(axis=0)
    if not left.sum() or not right.sum():
        return 0.0
    return jensen_shannon(left / left.sum(), right / right.sum())


def _permuted(is_after: np.ndarray, strata: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the labels shuffled within each stratum."""
    shuffled = np.empty_like(is_after)
    shuffled[np.lexsort((generator.random(len(strata)), strata))] = is_after[np.argsort(strata, kind="stable")]
    return shuffled


def _changes(counts: np.ndarray, is_after: np.ndarray, names: Sequence[tuple[str, ...]]) -> tuple[NgramChange, ...]:
    left, right = counts[~is_after].sum(axis=0), counts[is_after].sum(axis=0)
    left, right = left / left.sum(), right / right.sum()
    order = sorted(range(len(names)), key=lambda index: (-abs(right[index] - left[index]), names[index]))
    return tuple(
        NgramChange(tools=names[index], before=float(left[index]), after=float(right[index]))
        for index in order[:_MAX_NAMED]
        if right[index] != left[index]
    )
