"""Choosing one of n submissions, and how much of the way from Pass@1 to Pass@k that goes (paper B, section 6).

Reads candidates; makes `Selection` records. Invariants: a scorer never reads a verdict; candidates with equal scores
are chosen between at random, and the numbers are exact expectations over that and over which k of the n samples there
are; tasks with fewer than k samples are left out, of every number alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np

from repairgym.analysis.candidates import Candidate
from repairgym.analysis.outcome_scorer import OutcomeScorer, agreement
from repairgym.evaluation.bootstrap import NUM_RESAMPLES, bootstrap_spread
from repairgym.evaluation.pass_at_k import pass_at_k
from repairgym.records import Record

Scorer = Callable[[Candidate, Sequence[Candidate]], float]
"""(candidate, all candidates of its task) -> score; the highest is chosen."""

_TEST_SCORE = {"passed": 1.0, "untested": 0.0, "failed": -1.0}


def _tests(one: Candidate, siblings: Sequence[Candidate]) -> float:
    return _TEST_SCORE[one.test_state]


SCORERS: dict[str, Scorer] = {
    "tests": _tests,
    "agreement": agreement,
    "tests_then_agreement": lambda one, siblings: 2.0 * _tests(one, siblings) + agreement(one, siblings),
    "log_prob": lambda one, siblings: one.mean_log_prob,
    "least_sure_turn": lambda one, siblings: one.min_turn_log_prob,
    "last_turn_log_prob": lambda one, siblings: one.last_turn_log_prob,
}
"""Scorers that need no training; ``outcome`` (`scorers_with`) needs one."""

SCORER_LABELS = {
    "tests": "visible tests pass after the last edit",
    "agreement": "agreement: most equal patches among the samples",
    "tests_then_agreement": "tests, then agreement",
    "log_prob": "mean log-prob of the sampled tokens (minus the entropy estimate)",
    "least_sure_turn": "log-prob of the least sure turn",
    "last_turn_log_prob": "log-prob of the last action",
    "outcome": "outcome scorer, fitted on training tasks",
}


def scorers_with(outcome: OutcomeScorer | None) -> dict[str, Scorer]:
    """All scorers that can be used, by name."""
    return {**SCORERS, "outcome": outcome.probability} if outcome else dict(SCORERS)


class Selection(Record):
    """Best-of-k by one scorer."""

    scorer: str
    k: int
    num_tasks: int
    """Tasks with at least k samples."""
    value: float
    """Chance that the chosen one of k samples passes."""
    ci_low: float
    ci_high: float
    pass_at_1: float
    pass_at_k: float
    gap_closed: float | None
    """(value - Pass@1) / (Pass@k - Pass@1); None when there is no gap to close."""
    gap_closed_low: float | None
    gap_closed_high: float | None
    """95 % percentile interval, bootstrap over tasks; None when resamples without a gap are more than 2.5 %."""


def select(
    tasks: Mapping[str, Sequence[Candidate]],
    scorer: str,
    score: Scorer,
    k: int,
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Selection | None:
    """Best-of-k over the tasks that have k candidates; None when none has."""
    scored = {task: group for task, group in sorted(tasks.items()) if len(group) >= k}
    if not scored:
        return None
    chosen = [best_of_k([(score(one, group), one.is_passed) for one in group], k) for group in scored.values()]
    counts = [(len(group), sum(one.is_passed for one in group)) for group in scored.values()]
    first = [num_passed / num for num, num_passed in counts]
    any_of_k = [pass_at_k(num, num_passed, k) or 0.0 for num, num_passed in counts]
    spread = bootstrap_spread(chosen, bounds=(0.0, 1.0), seed=seed, num_resamples=num_resamples)
    low, high = _gap_interval(chosen, first, any_of_k, seed, num_resamples)
    return Selection(
        scorer=scorer,
        k=k,
        num_tasks=len(scored),
        value=statistics.fmean(chosen),
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        pass_at_1=statistics.fmean(first),
        pass_at_k=statistics.fmean(any_of_k),
        gap_closed=_gap_closed(statistics.fmean(chosen), statistics.fmean(first), statistics.fmean(any_of_k)),
        gap_closed_low=low,
        gap_closed_high=high,
    )


def best_of_k(scored: Sequence[tuple[float, bool]], k: int) -> float:
    """Chance that the highest-scored of k of these samples passes, over all subsets of k; ties are broken at random.

    The best of a random subset lies among the samples of one score with the probability that the subset holds one of
    them and none of a higher score.

    Raises:
        ValueError: k is not between 1 and the number of samples.
    """
    num = len(scored)
    if not 1 <= k <= num:
        raise ValueError(f"got k={k} of {num} samples, expected 1 <= k <= {num}")
    ranked = sorted(scored, key=lambda pair: -pair[0])
    total, num_above = 0.0, 0
    for _, tied in groupby(ranked, key=lambda pair: pair[0]):
        passed = [is_passed for _, is_passed in tied]
        num_ways = math.comb(num - num_above, k) - math.comb(num - num_above - len(passed), k)
        total += num_ways / math.comb(num, k) * statistics.fmean(passed)
        num_above += len(passed)
    return total


def _gap_closed(value: float, first: float, any_of_k: float) -> float | None:
    gap = any_of_k - first
    return (value - first) / gap if gap > 1e-12 else None


def _gap_interval(
    chosen: Sequence[float], first: Sequence[float], any_of_k: Sequence[float], seed: int, num_resamples: int
) -> tuple[float | None, float | None]:
    table = np.array([chosen, first, any_of_k])
    generator = np.random.default_rng(seed)
    ratios = []
    for _ in range(min(num_resamples, 2000)):
        means = table[:, generator.integers(0, table.shape[1], table.shape[1])].mean(axis=1)
        ratios.append(_gap_closed(*means.tolist()))
    valid = [ratio for ratio in ratios if ratio is not None]
    if len(valid) < 0.975 * len(ratios):
        return None, None
    low, high = np.quantile(valid, (0.025, 0.975))
    return float(low), float(high)
