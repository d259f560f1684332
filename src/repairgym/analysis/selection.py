"""Best-of-n selection and abstention (paper B, section 6): one of n submissions, or only the confident ones.

Reads candidates; makes `Selection` records, `Abstention` curves and a `SelectionStudy` of a stored evaluation.
Guarantees: a scorer never reads a verdict; numbers are exact expectations over ties and over the k of n samples; tasks
with fewer than k samples are in no number; an abstention curve ends at coverage 1 with the plain success rate; the
outcome scorer is fitted on training tasks only.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from repairgym.analysis.candidates import (
    CandidateSubmission,
    OutcomeScorer,
    agreement,
    by_task,
    candidate,
    fit_outcome_scorer,
)
from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import NUM_RESAMPLES, bootstrap_spread
from repairgym.evaluation.pass_at_k import pass_at_k
from repairgym.records import Record
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore

Scorer = Callable[[CandidateSubmission, Sequence[CandidateSubmission]], float]
"""(candidate, all candidates of its task) -> score; the highest is chosen."""

_TEST_SCORE = {"passed": 1.0, "untested": 0.0, "failed": -1.0}


def _tests(submission: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> float:
    return _TEST_SCORE[submission.test_state]


SCORERS: dict[str, Scorer] = {
    "tests": _tests,
    "agreement": agreement,
    "tests_then_agreement": lambda submission, siblings: (
        2.0 * _tests(submission, siblings) + agreement(submission, siblings)
    ),
    "log_prob": lambda submission, siblings: submission.mean_log_prob,
    "least_sure_turn": lambda submission, siblings: submission.min_turn_log_prob,
    "last_turn_log_prob": lambda submission, siblings: submission.last_turn_log_prob,
}
"""Scorers that need no training; ``outcome`` needs one."""
LOG_PROB_SCORERS = ("log_prob", "least_sure_turn", "last_turn_log_prob")
"""Scorers that need log-probabilities of the sampled tokens, which not every server gives."""

SCORER_LABELS = {
    "tests": "visible tests pass after the last edit",
    "agreement": "agreement: most equal patches among the samples",
    "tests_then_agreement": "tests, then agreement",
    "log_prob": "mean log-prob of the sampled tokens (minus the entropy estimate)",
    "least_sure_turn": "log-prob of the least sure turn",
    "last_turn_log_prob": "log-prob of the last action",
    "outcome": "outcome scorer, fitted on training tasks",
}


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
    tasks: Mapping[str, Sequence[CandidateSubmission]],
    scorer: str,
    score: Scorer,
    k: int,
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Selection | None:
    """Best-of-k over the tasks that have k candidates; None when none has."""
    groups = [group for _, group in sorted(tasks.items()) if len(group) >= k]
    if not groups:
        return None
    chosen = [best_of_k([(score(it, group), it.is_passed) for it in group], k) for group in groups]
    counts = [(len(group), sum(it.is_passed for it in group)) for group in groups]
    first = [num_passed / num for num, num_passed in counts]
    any_of_k = [pass_at_k(num, num_passed, k) or 0.0 for num, num_passed in counts]
    spread = bootstrap_spread(chosen, bounds=(0.0, 1.0), seed=seed, num_resamples=num_resamples)
    low, high = _gap_interval(chosen, first, any_of_k, seed, num_resamples)
    return Selection(
        scorer=scorer,
        k=k,
        num_tasks=len(groups),
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
    total, num_above = 0.0, 0
    for passed in _ties(scored):
        num_ways = math.comb(num - num_above, k) - math.comb(num - num_above - len(passed), k)
        total += num_ways / math.comb(num, k) * statistics.fmean(passed)
        num_above += len(passed)
    return total


def _ties(scored: Sequence[tuple[float, bool]]) -> Iterator[list[bool]]:
    """Yield the outcomes of the samples of each score, highest score first."""
    for _, tied in groupby(sorted(scored, key=lambda pair: -pair[0]), key=lambda pair: pair[0]):
        yield [is_passed for _, is_passed in tied]


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


_GRID = tuple(step / 20 for step in range(1, 21))


class Abstention(Record):
    """Accuracy by coverage for one confidence score."""

    confidence: str
    num_candidates: int
    points: tuple[tuple[float, float], ...]
    """(coverage: share of accepted candidates, accuracy: share of those that pass)."""
    auroc: float | None
    """Chance that a passing candidate has a higher score than a failing one, ties half; None with one outcome only."""
    mean_risk: float
    """Mean over the coverages of 1 - accuracy (area under the risk-coverage curve); lower is better."""


def abstention(tasks: Mapping[str, Sequence[CandidateSubmission]], confidence: str, score: Scorer) -> Abstention | None:
    """Return the curve over all candidates of all tasks; None without any."""
    scored = [(score(submission, group), submission.is_passed) for group in tasks.values() for submission in group]
    if not scored:
        return None
    accuracies = accuracy_by_count(scored)
    num = len(scored)
    points = [(at, accuracies[max(0, round(at * num) - 1)]) for at in _GRID]
    return Abstention(
        confidence=confidence,
        num_candidates=num,
        points=tuple(points),
        auroc=auroc(scored),
        mean_risk=1.0 - statistics.fmean(accuracies),
    )


def accuracy_by_count(scored: Sequence[tuple[float, bool]]) -> list[float]:
    """Return the expected accuracy of the 1, 2, ... n most confident; equal scores come in random order."""
    accuracies: list[float] = []
    num_passed = 0.0
    for passed in _ties(scored):
        for _ in passed:
            num_passed += statistics.fmean(passed)
            accuracies.append(num_passed / (len(accuracies) + 1))
    return accuracies


def auroc(scored: Sequence[tuple[float, bool]]) -> float | None:
    """Return the Mann-Whitney statistic over the number of pairs."""
    wins, num_passed, num_failed = 0.0, 0, 0
    for outcomes in _ties(scored):
        passed, failed = sum(outcomes), len(outcomes) - sum(outcomes)
        wins += failed * (num_passed + passed / 2)
        num_passed += passed
        num_failed += failed
    return wins / (num_passed * num_failed) if num_passed and num_failed else None


_MAX_FITTED = 1000
_MIN_FITTED = 50


class SelectionStudy(Record):
    """Gains of a policy from best-of-n selection and from abstention."""

    phase: str
    k: int
    selections: tuple[Selection, ...]
    """Best gap closed first."""
    abstentions: tuple[Abstention, ...]
    """Lowest risk first."""
    outcome_scorer: OutcomeScorer | None
    """None when training has too few trajectories for a fit, or log-probabilities that these samples lack."""
    left_out: tuple[str, ...] = ()
    """Scorers that need log-probabilities, where the samples have none: their ties are no finding of the policy."""


def study_selection(
    store: RunStore, phase: str, *, training_phase: str, num_resamples: int = 2000
) -> SelectionStudy | None:
    """Study an evaluation with several samples per task; None with fewer than two.

    The outcome scorer is fitted on the latest 1000 valid trajectories of training tasks in ``training_phase``; there is
    none where that is the phase itself.
    """
    tasks = by_task(candidate(trajectory) for trajectory in store.trajectories(phase=phase))
    sizes = Counter(len(group) for group in tasks.values())
    k = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0
    if k < 2:
        return None
    tasks = {task_id: group for task_id, group in tasks.items() if len(group) >= k}
    outcome = _fit_on_training(store, training_phase) if training_phase != phase else None
    has_log_probs = any(submission.has_log_probs for group in tasks.values() for submission in group)
    if outcome and outcome.reads_log_probs and not has_log_probs:
        outcome = None
    left_out = () if has_log_probs else LOG_PROB_SCORERS
    scorers = {name: score for name, score in SCORERS.items() if name not in left_out}
    if outcome:
        scorers["outcome"] = outcome.probability
    selections = [select(tasks, name, score, k, num_resamples=num_resamples) for name, score in scorers.items()]
    curves = [abstention(tasks, name, score) for name, score in scorers.items()]
    return SelectionStudy(
        phase=phase,
        k=k,
        selections=tuple(sorted((best for best in selections if best), key=lambda best: -best.value)),
        abstentions=tuple(sorted((curve for curve in curves if curve), key=lambda curve: curve.mean_risk)),
        outcome_scorer=outcome,
        left_out=left_out,
    )


def _fit_on_training(store: RunStore, phase: str) -> OutcomeScorer | None:
    """Fit an outcome scorer; None when the trajectories are few or of one outcome."""
    rows = [row for row in store.rows(phase=phase) if row.split == "train" and row.reward is not None]
    chosen = rows[-_MAX_FITTED:]
    if len(chosen) < _MIN_FITTED:
        return None
    try:
        return fit_outcome_scorer([candidate(store.trajectory(row.id)) for row in chosen])
    except InputError:
        return None


def phase_to_study(rows: list[TrajectoryRow]) -> str:
    """Return the (latest) evaluation with the most samples per task; empty when each task has one sample."""
    samples: dict[str, Counter[str]] = {}
    for row in rows:
        samples.setdefault(row.phase, Counter())[row.task_id] += 1
    sizes = {phase: min(counts.values()) for phase, counts in samples.items()}
    best = max(sizes, key=lambda phase: (sizes[phase], list(sizes).index(phase)), default="")
    return best if best and sizes[best] > 1 else ""
