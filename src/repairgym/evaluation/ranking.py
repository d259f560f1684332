"""Leaderboards: policies ranked by Pass@1 on their common tasks, with intervals of the ranks.

Reads verdicts by policy. Makes places. Guarantees: comparisons are paired by task; all rank intervals hold together in
95 % of cases, because each of the pairwise tests has its share of the error (Bonferroni; the intervals are those of
Mogstad, Romano, Shaikh and Wilhelm, "Inference for Ranks", 2024, section 3); who cannot be distinguished is named.
"""

import math
import statistics
from collections.abc import Mapping
from itertools import combinations

from scipy.special import stdtrit

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import Estimate, TaskVerdicts, pass_at_1, success_rates
from repairgym.records import Record

_ERROR = 0.05


class Place(Record):
    """The place of a policy among others."""

    name: str
    pass_at_1: Estimate
    """On the common tasks."""
    rank_low: int
    """One more than the number of policies that are better beyond noise."""
    rank_high: int
    indistinguishable: tuple[str, ...]
    """Policies from which no test distinguishes it."""


def rank(policies: Mapping[str, TaskVerdicts], *, num_resamples: int = NUM_RESAMPLES) -> list[Place]:
    """Return the places of at least two policies, best first; `InputError` with fewer than two common tasks."""
    if len(policies) < 2:
        raise InputError(f"got {len(policies)} evaluations to rank, expected at least 2")
    rates = {name: success_rates(verdicts) for name, verdicts in policies.items()}
    tasks = sorted(set.intersection(*(set(of_policy) for of_policy in rates.values())))
    if len(tasks) < 2:
        raise InputError(f"got {len(tasks)} tasks that all of {', '.join(policies)} have tried, expected at least 2")
    better: dict[str, set[str]] = {name: set() for name in policies}
    level = 1.0 - _ERROR / (len(policies) * (len(policies) - 1))
    critical = float(stdtrit(len(tasks) - 1, level))
    for left, right in combinations(policies, 2):
        score = _score([rates[left][task] - rates[right][task] for task in tasks])
        if abs(score) > critical:
            winner, loser = (left, right) if score > 0 else (right, left)
            better[loser].add(winner)
    places = []
    for name, verdicts in policies.items():
        worse = {other for other, winners in better.items() if name in winners}
        estimate = pass_at_1({task: verdicts[task] for task in tasks}, num_resamples=num_resamples)
        assert estimate is not None
        places.append(
            Place(
                name=name,
                pass_at_1=estimate,
                rank_low=1 + len(better[name]),
                rank_high=len(policies) - len(worse),
                indistinguishable=tuple(sorted(policies.keys() - better[name] - worse - {name})),
            )
        )
    return sorted(places, key=lambda place: (-place.pass_at_1.value, place.name))


def _score(differences: list[float]) -> float:
    """Return Student's statistic; unanimous tasks count as if one of them were apart, so that few prove nothing."""
    num = len(differences)
    error = max(statistics.stdev(differences) / math.sqrt(num), 1.0 / num)
    return statistics.fmean(differences) / error
