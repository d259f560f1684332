"""A learned judge of submissions: logistic regression on what is known without the verdict.

Reads candidates with their outcomes (training tasks); makes an `OutcomeScorer` that gives new candidates a probability.
Invariants: features are standardised with the training set's own mean and deviation; the fit is deterministic and
converges, because the ridge term makes it strictly convex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from repairgym.analysis.candidates import Candidate, by_task
from repairgym.errors import InputError
from repairgym.records import Record

FEATURES = (
    "tests passed",
    "tests failed",
    "agreement",
    "mean log-prob",
    "least sure turn",
    "last turn log-prob",
    "log turns",
    "error share",
    "submitted",
    "changed nothing",
)
_MAX_ITERATIONS = 100
_TOLERANCE = 1e-8


class OutcomeScorer(Record):
    """Weights of a fitted logistic regression; ``probability`` applies them."""

    weights: tuple[float, ...]
    """Bias first, then one per feature, for standardised features."""
    means: tuple[float, ...]
    scales: tuple[float, ...]
    num_samples: int

    def probability(self, one: Candidate, siblings: Sequence[Candidate]) -> float:
        """Estimated chance that ``one`` passes."""
        scaled = (np.asarray(features(one, siblings)) - self.means) / self.scales
        return _sigmoid(float(self.weights[0] + scaled @ np.asarray(self.weights[1:])))


def features(one: Candidate, siblings: Sequence[Candidate]) -> list[float]:
    """The numbers of `FEATURES`; ``siblings`` are all candidates of the task, ``one`` among them."""
    return [
        float(one.test_state == "passed"),
        float(one.test_state == "failed"),
        agreement(one, siblings),
        one.mean_log_prob,
        one.min_turn_log_prob,
        one.last_turn_log_prob,
        math.log1p(one.num_turns),
        one.num_errors / max(1, one.num_turns),
        float(one.is_submitted),
        float(not one.patch_digest),
    ]


def agreement(one: Candidate, siblings: Sequence[Candidate]) -> float:
    """Share of the other candidates of the task that left the same code; 0 for one that changed nothing."""
    others = [other for other in siblings if other.id != one.id]
    if not others or not one.patch_digest:
        return 0.0
    return sum(other.patch_digest == one.patch_digest for other in others) / len(others)


def fit_outcome_scorer(candidates: Sequence[Candidate], ridge: float = 1.0) -> OutcomeScorer:
    """Fit by Newton's method (iteratively reweighted least squares).

    Args:
        candidates: Of training tasks; those of one task are each other's siblings.
        ridge: Weight of the squared weights, the bias left out.

    Raises:
        InputError: all candidates have one outcome, so nothing can be learned.
    """
    groups = by_task(candidates)
    outcomes = np.array([float(one.is_passed) for group in groups.values() for one in group])
    if not len(outcomes) or np.ptp(outcomes) == 0.0:
        raise InputError(f"got {len(outcomes)} candidates of one outcome, expected passes and failures to learn from")
    raw = np.array([features(one, group) for group in groups.values() for one in group])
    means, scales = raw.mean(axis=0), raw.std(axis=0)
    scales[scales == 0.0] = 1.0
    design = np.hstack([np.ones((len(raw), 1)), (raw - means) / scales])
    weights = fit_logistic(design, outcomes, ridge)
    return OutcomeScorer(
        weights=tuple(weights.tolist()),
        means=tuple(means.tolist()),
        scales=tuple(scales.tolist()),
        num_samples=len(outcomes),
    )


def fit_logistic(design: np.ndarray, outcomes: np.ndarray, ridge: float) -> np.ndarray:
    """Weights [num_features] that minimise log loss plus ``ridge / 2`` times their squares, the first one free.

    Args:
        design: Features, shape [num_samples, num_features]; the first column is the bias.
        outcomes: 0 or 1, shape [num_samples].
        ridge: Weight of the penalty, positive.
    """
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    weights = np.zeros(design.shape[1])
    for _ in range(_MAX_ITERATIONS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30.0, 30.0)))
        gradient = design.T @ (chance - outcomes) + penalty * weights
        curvature = (design.T * (chance * (1.0 - chance) + 1e-12)) @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        weights -= step
        if np.abs(step).max() < _TOLERANCE:
            break
    return weights


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, value))))
