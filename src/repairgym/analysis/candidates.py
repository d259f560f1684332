"""Submissions to choose from: features that are known without the verdict, and a scorer fitted on them.

Reads whole trajectories (tokens too); makes `CandidateSubmission` records, and an `OutcomeScorer` from those of
training tasks. Guarantees: no scorer reads ``is_passed``; the training set gives mean and deviation of the features;
the fit is deterministic and converges, because the ridge term makes it strictly convex.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from repairgym.agent.tools.roles import TestState, final_test_state
from repairgym.analysis.behavior import group_by
from repairgym.errors import InputError
from repairgym.records import Record, StopReason, Trajectory, VerdictKind


class CandidateSubmission(Record):
    """One submission of one task."""

    id: str
    task_id: str
    is_passed: bool
    """Strict: exploited and invalid are not passed."""
    patch_digest: str
    """Of the changed lines and files (`patch_digest`); empty when nothing was changed."""
    test_state: TestState
    """Result of the last test run, if it came after the last edit."""
    mean_log_prob: float
    """Over the sampled tokens, in nats. Minus it is the Monte Carlo estimate of the policy's entropy per token."""
    min_turn_log_prob: float
    """Mean log-probability of the least likely turn."""
    last_turn_log_prob: float
    """Mean log-probability of the last action, mostly the decision to submit."""
    has_log_probs: bool = True
    """False where the server gave none, which are stored as 0.0; the three numbers before say nothing then."""
    num_turns: int
    num_errors: int
    """Actions with a format or tool error."""
    is_submitted: bool


def candidate(trajectory: Trajectory) -> CandidateSubmission:
    """Return the features of one trajectory."""
    ledger, spans = trajectory.ledger, [turn.action_span for turn in trajectory.turns]
    by_turn = [float(ledger.log_prob[start:end].mean()) for start, end in spans if end > start]
    num_sampled = int(ledger.is_action.sum())
    return CandidateSubmission(
        id=trajectory.id,
        task_id=trajectory.task_id,
        is_passed=trajectory.verdict.kind is VerdictKind.PASSED,
        patch_digest=patch_digest(trajectory.final_patch),
        test_state=final_test_state(trajectory.turns),
        mean_log_prob=float(ledger.log_prob[ledger.is_action].mean()) if num_sampled else 0.0,
        min_turn_log_prob=min(by_turn, default=0.0),
        last_turn_log_prob=by_turn[-1] if by_turn else 0.0,
        has_log_probs=bool(ledger.log_prob[ledger.is_action].any()),
        num_turns=len(trajectory.turns),
        num_errors=sum(bool(turn.error) for turn in trajectory.turns),
        is_submitted=trajectory.stop_reason is StopReason.SUBMITTED,
    )


def patch_digest(patch: str) -> str:
    """Return a digest of the lines that a unified diff removes and adds, and of files it adds and deletes; else empty.

    Where they stand, white space within them, and lines of Python that hold only a comment do not count.
    """
    parts = list(_parts(patch.splitlines()))
    is_changed = any(is_change for is_change, _ in parts)
    text = "\n".join(line for _, line in parts)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest() if is_changed else ""


def _parts(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yield whether it is a change, and the text, of each part of a diff that counts."""
    title = empty_file = ""
    is_python = False
    rows = pairwise([*lines, ""])
    for line, following in rows:
        if line.startswith("--- ") and following.startswith("+++ "):
            next(rows)
            paths = [header[4:].split("\t")[0].strip() for header in (line, following)]
            is_python, empty_file = any(path.endswith((".py", ".pyi")) for path in paths), ""
            yield "/dev/null" in paths, f"{line}\n{following}"
        elif line.startswith("diff --git "):
            if empty_file:
                yield True, empty_file
            title, empty_file = line, ""
        elif line.startswith(("new file mode ", "deleted file mode ")):
            empty_file = f"{line.split()[0]} {title}"
        elif line[:1] in ("+", "-"):
            content = " ".join(line[1:].split())
            if content and not (is_python and content.startswith("#")):
                yield True, f"{line[0]} {content}"
    if empty_file:
        yield True, empty_file


def by_task(candidates: Iterable[CandidateSubmission]) -> dict[str, list[CandidateSubmission]]:
    """Task id -> its candidates, in their order."""
    return group_by(candidates, lambda submission: submission.task_id)


_LOG_PROB_FEATURES = ("mean log-prob", "least sure turn", "last turn log-prob")
FEATURES = (
    "tests passed",
    "tests failed",
    "agreement",
    *_LOG_PROB_FEATURES,
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
    """Bias first, then one per feature, for standardized features."""
    means: tuple[float, ...]
    scales: tuple[float, ...]
    num_samples: int

    @property
    def reads_log_probs(self) -> bool:
        """False where those that it was fitted on had none, so that their weights are 0."""
        return any(self.weights[1 + FEATURES.index(name)] for name in _LOG_PROB_FEATURES)

    def probability(self, submission: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> float:
        """Return the estimated probability that ``submission`` passes."""
        scaled = (np.asarray(features(submission, siblings)) - self.means) / self.scales
        return float(_sigmoid(self.weights[0] + scaled @ np.asarray(self.weights[1:])))


def features(submission: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> list[float]:
    """Return the numbers of `FEATURES`; ``siblings`` are all candidates of the task, ``submission`` included."""
    return [
        float(submission.test_state == "passed"),
        float(submission.test_state == "failed"),
        agreement(submission, siblings),
        submission.mean_log_prob,
        submission.min_turn_log_prob,
        submission.last_turn_log_prob,
        math.log1p(submission.num_turns),
        submission.num_errors / max(1, submission.num_turns),
        float(submission.is_submitted),
        float(not submission.patch_digest),
    ]


def agreement(submission: CandidateSubmission, siblings: Sequence[CandidateSubmission]) -> float:
    """Return the share of the task's other candidates with the same patch; 0 for an empty patch."""
    others = [other for other in siblings if other.id != submission.id]
    if not others or not submission.patch_digest:
        return 0.0
    return sum(other.patch_digest == submission.patch_digest for other in others) / len(others)


def fit_outcome_scorer(
    candidates: Sequence[CandidateSubmission], ridge: float = 1.0, used: Collection[str] | None = None
) -> OutcomeScorer:
    """Fit by Newton's method (iteratively reweighted least squares); ``ridge`` weighs the squares of all but the bias.

    ``used`` are the ids of those that are fitted, all by default; the others count for agreement only.

    Raises:
        InputError: all candidates have one outcome, so nothing can be learned.
    """
    groups = by_task(candidates)
    fitted = [(it, group) for group in groups.values() for it in group if used is None or it.id in used]
    outcomes = np.array([float(submission.is_passed) for submission, _ in fitted])
    if not len(outcomes) or np.ptp(outcomes) == 0.0:
        raise InputError(f"got {len(outcomes)} candidates of one outcome, expected passes and failures")
    raw = np.array([features(submission, group) for submission, group in fitted])
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
    """Return the weights [num_features] that minimize log loss plus ``ridge / 2`` times their squares, the first free.

    ``design`` has the shape [num_samples, num_features], its first column is the bias; ``outcomes`` are 0 or 1.
    """
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    weights = np.zeros(design.shape[1])
    for _ in range(_MAX_ITERATIONS):
        chance = _sigmoid(design @ weights)
        gradient = design.T @ (chance - outcomes) + penalty * weights
        curvature = (design.T * (chance * (1.0 - chance) + 1e-12)) @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        weights -= step
        if np.abs(step).max() < _TOLERANCE:
            break
    return weights


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    chance: np.ndarray = 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))
    return chance
