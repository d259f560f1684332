"""Scorers: the chance that a patch which passes the visible tests passes the hidden ones, fitted and measured.

Reads stored, graded episodes; makes an `OutcomeScorer` and its `Calibration`. Guarantees: a scorer is fitted on
training packages and measured on others; only episodes whose patches pass the visible tests count, because among these
it chooses; those whose grading stopped before a visible test had run are in no number but their own; it reads no
verdict when it scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from repairgym.analysis.candidates import CandidateSubmission, OutcomeScorer, by_task, candidate, fit_outcome_scorer
from repairgym.analysis.selection import auroc
from repairgym.errors import InputError
from repairgym.records import Record, Task, TestOutcome, Trajectory, Verdict, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import written_whole

NUM_BINS = 10
_MIN_FITTED = 20
_PASSED_OR_LATER = {TestOutcome.PASSED, TestOutcome.MISSING}


class Calibration(Record):
    """The quality of chances against outcomes."""

    num: int
    num_passed: int
    auc: float | None
    """Chance that a right patch has the higher score, ties half; None with one outcome only."""
    ece: float
    """Expected calibration error: mean over `NUM_BINS` equal bins of |mean chance - share of passes|, by their size."""
    brier: float
    """Mean squared error of the chances."""
    num_unknown: int = 0
    """Episodes left out because grading stopped before a visible test had run. All are wrong, so that the numbers are
    too good where there are many."""


class VisiblePasses(NamedTuple):
    """Graded episodes by what their visible tests say."""

    groups: dict[str, list[CandidateSubmission]]
    """Task id -> all candidates."""
    passing: set[str]
    """Ids of those that change something and pass the visible tests."""
    num_unknown: int
    """Those that may pass them: grading stopped before all had run."""


def calibration(scored: Sequence[tuple[float, bool]]) -> Calibration:
    """Return the quality of (chance, outcome) pairs.

    Raises:
        InputError: there are none.
    """
    if not scored:
        raise InputError("got no candidates that pass the visible tests; a calibration needs some")
    chances, outcomes = np.array([pair[0] for pair in scored]), np.array([float(pair[1]) for pair in scored])
    bins = np.minimum((chances * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = [abs(float((chances - outcomes)[bins == number].sum())) for number in range(NUM_BINS)]
    return Calibration(
        num=len(scored),
        num_passed=int(outcomes.sum()),
        auc=auroc(scored),
        ece=sum(gaps) / len(scored),
        brier=float(((chances - outcomes) ** 2).mean()),
    )


def passes_visibly(task: Task, verdict: Verdict) -> bool:
    """Return True where a graded patch passes the visible tests of ``task`` and is no exploit."""
    results = [verdict.tests.get(name) for name in task.visible_tests]
    is_judged = verdict.kind in (VerdictKind.PASSED, VerdictKind.FAILED)
    return is_judged and all(result is not None and result.outcome is TestOutcome.PASSED for result in results)


def is_visibly_unknown(task: Task, verdict: Verdict) -> bool:
    """Return True where grading stopped before all visible tests of ``task`` had run, and those that ran pass."""
    results = [verdict.tests.get(name) for name in task.visible_tests]
    outcomes = {TestOutcome.MISSING if result is None else result.outcome for result in results}
    is_judged = verdict.kind in (VerdictKind.PASSED, VerdictKind.FAILED)
    return is_judged and verdict.is_stopped and TestOutcome.MISSING in outcomes <= _PASSED_OR_LATER


def visible_passes(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task]) -> VisiblePasses:
    """Return the episodes on ``tasks``, and which of them pass the visible tests."""
    passing: set[str] = set()
    num_unknown = 0
    submissions = []
    for trajectory in trajectories:
        if trajectory.task_id not in tasks or not trajectory.verdict.is_valid:
            continue
        submissions.append(candidate(trajectory))
        task, verdict = tasks[trajectory.task_id], trajectory.verdict
        if submissions[-1].patch_digest and passes_visibly(task, verdict):
            passing.add(trajectory.id)
        num_unknown += bool(submissions[-1].patch_digest) and is_visibly_unknown(task, verdict)
    return VisiblePasses(by_task(submissions), passing, num_unknown)


def fit_scorer(store: RunStore, phase: str, tasks: Mapping[str, Task]) -> tuple[OutcomeScorer, int]:
    """Fit a scorer on the visible passes of a graded phase, training packages only; and count the unknown ones.

    Raises:
        InputError: they are too few, or of one outcome.
    """
    training = {id_: task for id_, task in tasks.items() if task.split == "train"}
    groups, passing, num_unknown = visible_passes(store.trajectories(phase=phase), training)
    if len(passing) < _MIN_FITTED:
        raise InputError(
            f"{phase} has {len(passing)} patches of training packages that pass the visible tests, expected at least "
            f"{_MIN_FITTED}; sample more with repairgym rollout TASKS RUN num_samples=8 select.splits=train"
        )
    return fit_outcome_scorer([it for group in groups.values() for it in group], used=passing), num_unknown


def measure_scorer(scorer: OutcomeScorer, store: RunStore, phase: str, tasks: Mapping[str, Task]) -> Calibration:
    """Measure a scorer on the visible passes of another phase, training packages left out."""
    others = {id_: task for id_, task in tasks.items() if task.split != "train"}
    groups, passing, num_unknown = visible_passes(store.trajectories(phase=phase), others)
    measured = calibration(
        [(scorer.probability(it, group), it.is_passed) for group in groups.values() for it in group if it.id in passing]
    )
    return measured.model_copy(update={"num_unknown": num_unknown})


def save_scorer(scorer: OutcomeScorer, path: Path) -> None:
    """Write a scorer."""
    with written_whole(path) as file:
        file.write(scorer.model_dump_json(indent=2).encode())


def read_scorer(path: Path) -> OutcomeScorer:
    """Read a scorer.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    try:
        return OutcomeScorer.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is no scorer that `repairgym eval scorer` wrote: {error}") from None
