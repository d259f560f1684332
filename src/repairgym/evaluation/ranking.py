"""Leaderboards: policies ranked by Pass@1 on their common tasks, with intervals of the ranks.

Reads verdicts by policy, or the evaluations of runs. Makes places. Guarantees: comparisons are paired by task; all rank
intervals hold together in 95 % of cases, because each of the pairwise tests has its share of the error (Bonferroni; the
intervals are those of Mogstad, Romano, Shaikh and Wilhelm, "Inference for Ranks", 2024, section 3); who cannot be
distinguished is named.
"""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import Estimate, TaskVerdicts, pass_at_1, success_rates
from repairgym.evaluation.stages import MANY_SAMPLES, EvalPhase
from repairgym.records import Record

_ERROR = 0.05
_MIN_SHARE = 0.25


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


class Policy(NamedTuple):
    """An evaluated policy of a run."""

    run: str
    stage: str
    verdicts: TaskVerdicts


class Leaderboard(Record):
    """Policies on the common tasks of a test set."""

    test_set: str
    places: tuple[Place, ...]
    """Best first."""
    left_out: dict[str, int] = {}
    """Policy -> tasks that it has tried: fewer than a quarter of what another has, so that few would be common."""

    def sentence(self, labels: Mapping[str, str] | None = None) -> str:
        """Say what the ranks tell about the best; ``labels`` are other names of the policies."""
        first, *others = self.places
        name, alike = (labels or {}).get(first.name, first.name), len(first.indistinguishable)
        if not alike:
            return f"{name} is above all others."
        if others[-1].pass_at_1.value == first.pass_at_1.value:
            return "All have the same Pass@1, and no policy can be distinguished from another."
        if alike == len(others):
            return f"{name} has the highest Pass@1, but no policy can be distinguished from it."
        return f"{name} has the highest Pass@1; {alike} of {len(others)} others cannot be distinguished from it."


def evaluated_policies(
    runs: Mapping[str, Mapping[EvalPhase, TaskVerdicts]], phase: str = ""
) -> dict[str, dict[str, Policy]]:
    """Return test set -> name -> policy, of all evaluations of ``runs`` (name -> evaluations), or of one phase.

    Test sets with one policy are left out, and so are evaluations that only serve Pass@k, unless they are named.
    """
    sets: dict[str, dict[str, Policy]] = {}
    for run, evaluations in runs.items():
        for (stage, test_set), verdicts in evaluations.items():
            if phase == f"eval/{stage}/{test_set}" or (not phase and stage != MANY_SAMPLES):
                name = stage if len(runs) == 1 else f"{stage} of {run}"
                sets.setdefault(test_set, {})[name] = Policy(run, stage, verdicts)
    return {name: policies for name, policies in sets.items() if len(policies) > 1}


def leaderboard(test_set: str, policies: Mapping[str, Policy], *, num_resamples: int = NUM_RESAMPLES) -> Leaderboard:
    """Return the ranks of policies.

    Raises:
        InputError: fewer than two policies have tried enough tasks, or they have fewer than two in common.
    """
    most = max((len(policy.verdicts) for policy in policies.values()), default=0)
    left_out = {name: num for name, it in policies.items() if (num := len(it.verdicts)) < _MIN_SHARE * most}
    ranked = {name: policy.verdicts for name, policy in policies.items() if name not in left_out}
    if left_out and len(ranked) < 2:
        few = ", ".join(f"{name} ({num})" for name, num in left_out.items())
        raise InputError(f"{next(iter(ranked))} has tried {most} tasks, and all others too few to rank: {few}")
    return Leaderboard(test_set=test_set, places=tuple(rank(ranked, num_resamples=num_resamples)), left_out=left_out)


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
    table = {name: np.array([of_policy[task] for task in tasks]) for name, of_policy in rates.items()}
    for left, right in combinations(policies, 2):
        score = _score(table[left] - table[right])
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


def _score(differences: np.ndarray) -> float:
    """Return Student's statistic; unanimous tasks count as if one of them were apart, so that few prove nothing."""
    num = len(differences)
    error = max(float(differences.std(ddof=1)) / math.sqrt(num), 1.0 / num)
    return float(differences.mean()) / error
