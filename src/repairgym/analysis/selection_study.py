"""Uncertainty and selection over one evaluation: every scorer as re-ranker and as confidence.

Reads a run store; makes a `SelectionStudy`. Invariants: the outcome scorer is fitted on training tasks only; the
numbers are over the tasks of the evaluation that have all k samples.
"""

from __future__ import annotations

from collections import Counter

from repairgym.analysis.abstention import Abstention, abstention
from repairgym.analysis.candidates import by_task, candidate
from repairgym.analysis.outcome_scorer import OutcomeScorer, fit_outcome_scorer
from repairgym.analysis.selection import Selection, scorers_with, select
from repairgym.errors import InputError
from repairgym.records import Record
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore

_MAX_FITTED = 1000
_MIN_FITTED = 50


class SelectionStudy(Record):
    """How far the choice among n samples, and the right to stay silent, would take a policy."""

    phase: str
    k: int
    selections: tuple[Selection, ...]
    """Best gap closed first."""
    abstentions: tuple[Abstention, ...]
    """Lowest risk first."""
    outcome_scorer: OutcomeScorer | None
    """None when training left too little to fit one."""


def study_selection(
    store: RunStore, phase: str, *, training_phase: str, num_resamples: int = 2000
) -> SelectionStudy | None:
    """Study ``phase``; None when fewer than two samples per task are there.

    Args:
        store: The run's store.
        phase: An evaluation with several samples per task.
        training_phase: Where the outcome scorer is fitted: its latest 1000 valid trajectories of training tasks.
        num_resamples: Number of bootstrap samples.
    """
    tasks = by_task(candidate(one) for one in store.trajectories(phase=phase))
    sizes = Counter(len(group) for group in tasks.values())
    k = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0
    if k < 2:
        return None
    outcome = fit_on_training(store, training_phase)
    scorers = scorers_with(outcome)
    selections = [select(tasks, name, score, k, num_resamples=num_resamples) for name, score in scorers.items()]
    curves = [abstention(tasks, name, score) for name, score in scorers.items()]
    return SelectionStudy(
        phase=phase,
        k=k,
        selections=tuple(sorted((one for one in selections if one), key=lambda one: -one.value)),
        abstentions=tuple(sorted((one for one in curves if one), key=lambda one: one.mean_risk)),
        outcome_scorer=outcome,
    )


def fit_on_training(store: RunStore, phase: str) -> OutcomeScorer | None:
    """An outcome scorer from the latest trajectories of training tasks; None when they are few or of one outcome."""
    rows = [row for row in store.rows(phase=phase) if row.split == "train" and row.reward is not None]
    chosen = rows[-_MAX_FITTED:]
    if len(chosen) < _MIN_FITTED:
        return None
    try:
        return fit_outcome_scorer([candidate(store.trajectory(row.id)) for row in chosen])
    except InputError:
        return None


def phase_to_study(rows: list[TrajectoryRow]) -> str:
    """The evaluation with the most samples per task, the later one among equals; empty when each task has one."""
    samples: dict[str, Counter[str]] = {}
    for row in rows:
        samples.setdefault(row.phase, Counter())[row.task_id] += 1
    sizes = {phase: min(counts.values()) for phase, counts in samples.items()}
    best = max(sizes, key=lambda phase: (sizes[phase], list(sizes).index(phase)), default="")
    return best if best and sizes[best] > 1 else ""
