"""Submissions as something to choose from: what can be known of each without its verdict, and the verdict beside it.

Reads whole trajectories (tokens too); makes `Candidate` records. Invariant: no scorer may read ``is_passed``; every
other field follows from what the agent did and said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from repairgym.agent.tools.roles import DEFAULT_ROLES, ToolRoles, is_edit, is_test_run
from repairgym.records import Record, StopReason, Trajectory, Turn, VerdictKind

TestState = Literal["passed", "failed", "untested"]

_PASSED = re.compile(r"^passed \d|\b\d+ passed\b|^build passed|\bBUILD SUCCESS", re.MULTILINE)
_NOT_PASSED = re.compile(r"\b[1-9]\d* (failed|errors?)\b|^failed \d|BUILD FAILED", re.MULTILINE)


class Candidate(Record):
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


def candidate(trajectory: Trajectory, roles: ToolRoles = DEFAULT_ROLES) -> Candidate:
    """What can be known of one trajectory."""
    by_turn = turn_log_probs(trajectory)
    ledger = trajectory.ledger
    num_sampled = int(ledger.is_action.sum())
    return Candidate(
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


def by_task(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Task id -> its candidates, in their order."""
    found: dict[str, list[Candidate]] = {}
    for one in candidates:
        found.setdefault(one.task_id, []).append(one)
    return found
