"""Submissions to choose from: features that are known without the verdict, and a scorer fitted on them.

Reads whole trajectories (tokens too); makes `CandidateSubmission` records, and an `OutcomeScorer` from those of training tasks.
Guarantees: no scorer reads ``is_passed``; features are standardized with the mean and deviation of the training set;
the fit is deterministic and converges, because the ridge term makes it strictly convex.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from repairgym.agent.tools.roles import DEFAULT_ROLES, ToolRoles, is_edit, is_test_run
from repairgym.errors import InputError
from repairgym.records import Record, StopReason, Trajectory, Turn, VerdictKind

TestState = Literal["passed", "failed", "untested"]

_PASSED = re.compile(r"^passed \d|\b\d+ passed\b|^build passed|\bBUILD SUCCESS", re.MULTILINE)
_NOT_PASSED = re.compile(r"\b[1-9]\d* (failed|errors?)\b|^failed \d|BUILD FAILED", re.MULTILINE)


class CandidateSubmission(Record):
    """One submission of one task."""

    id: str
    task_id: str
    seed: int
    is_passed: bool
    """Strict: exploited and invalid are not passed."""
    patch_digest: str
    """Of the changed lines (`patch_digest`); empty when nothing was changed."""
    test_state: TestState
    """What the last test run said, when it came after the last edit."""
    mean_log_prob: float
    """Over the sampled tokens, in nats. Minus it is the Monte Carlo estimate of the policy's entropy per token."""
    min_turn_log_prob: float
    """Mean log-probability of the turn that the policy was least sure of."""
    last_turn_log_prob: float
    """Mean log-probability of the last action, mostly the decision to submit."""
    num_turns: int
    num_errors: int
    """Actions that could not be parsed or that a tool refused."""
    is_submitted: bool


def candidate(trajectory: Trajectory, roles: ToolRoles = DEFAULT_ROLES) -> CandidateSubmission:
    """What can be known of one trajectory."""
    by_turn = turn_log_probs(trajectory)
    ledger = trajectory.ledger
    num_sampled = int(ledger.is_action.sum())
    return CandidateSubmission(
        id=trajectory.id,
        task_id=trajectory.task_id,
        seed=trajectory.seed,
        is_passed=trajectory.verdict.kind is VerdictKind.PASSED,
        patch_digest=patch_digest(trajectory.final_patch),
        test_state=final_test_state(trajectory.turns, roles),
        mean_log_prob=float(ledger.log_prob[ledger.is_action].mean()) if num_sampled else 0.0,
        min_turn_log_prob=min(by_turn, default=0.0),
        last_turn_log_prob=by_turn[-1] if by_turn else 0.0,
        num_turns=len(trajectory.turns),
        num_errors=sum(bool(turn.error) for turn in trajectory.turns),
        is_submitted=trajectory.stop_reason is StopReason.SUBMITTED,
    )


def turn_log_probs(trajectory: Trajectory) -> list[float]:
    """Mean log-probability of each turn's sampled tokens, in nats; turns without tokens are left out."""
    spans = (turn.action_span for turn in trajectory.turns)
    return [float(trajectory.ledger.log_prob[start:end].mean()) for start, end in spans if end > start]


def final_test_state(turns: Sequence[Turn], roles: ToolRoles = DEFAULT_ROLES) -> TestState:
    """What the agent knew of its tests when it ended."""
    for turn in reversed(turns):
        if is_edit(turn, roles):
            return "untested"
        if is_test_run(turn, roles):
            text = turn.observation
            return "passed" if _PASSED.search(text) and not _NOT_PASSED.search(text) else "failed"
    return "untested"


def patch_digest(patch: str) -> str:
    """Digest of the lines that a unified diff takes away and adds; empty when there are none.

    Where they stand, white space within them, and lines that hold only a comment do not count.
    """
    found = [line for line in map(_normal, patch.splitlines()) if line]
    is_changed = any(line.startswith(("+ ", "- ")) for line in found)
    return hashlib.sha256("\n".join(found).encode(errors="replace")).hexdigest() if is_changed else ""


def _normal(line: str) -> str:
    """A line of a diff as far as it counts; empty when it does not."""
    if line.startswith(("--- ", "+++ ")):
        return line
    content = " ".join(line[1:].split())
    return f"{line[0]} {content}" if line[:1] in ("+", "-") and content and not content.startswith("#") else ""


def by_task(candidates: Iterable[CandidateSubmission]) -> dict[str, list[CandidateSubmission]]:
    """Task id -> its candidates, in their order."""
    found: dict[str, list[CandidateSubmission]] = {}
    for one in candidates:
        found.setdefault(one.task_id, []).append(one)
    return found


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

    def probability(self, one: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> float:
        """Estimated chance that ``one`` passes."""
        scaled = (np.asarray(features(one, siblings)) - self.means) / self.scales
        return _sigmoid(float(self.weights[0] + scaled @ np.asarray(self.weights[1:])))


def features(one: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> list[float]:
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


def agreement(one: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> float:
    """Share of the other candidates of the task that left the same code; 0 for one that changed nothing."""
    others = [other for other in siblings if other.id != one.id]
    if not others or not one.patch_digest:
        return 0.0
    return sum(other.patch_digest == one.patch_digest for other in others) / len(others)


def fit_outcome_scorer(candidates: Sequence[CandidateSubmission], ridge: float = 1.0) -> OutcomeScorer:
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
