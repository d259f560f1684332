"""The choice among candidates: visible tests, then regressions, then agreement or a scorer, then abstention.

Reads episodes and patches; makes candidates, the chosen one and the reason in words. Guarantees: a candidate without
a change, or one that deceives the tests, is never a pass; hidden tests have no part in it; equal candidates give an
equal choice, the earlier of two that are level.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from repairgym.agent.allowance import Spending
from repairgym.agent.tools.roles import is_test_run
from repairgym.analysis.candidates import CandidateSubmission, OutcomeScorer, patch_digest
from repairgym.analysis.candidates import candidate as submission_of
from repairgym.config.models import Price
from repairgym.config.solving import ChoiceConfig
from repairgym.records import Record, StopReason, Task, TestOutcome, Trajectory, Verdict, VerdictKind
from repairgym.rollout.jobs import num_shared_turns
from repairgym.solving.spending import spending_of


class Candidate(Record):
    """One patch, judged by the visible tests in a fresh sandbox."""

    id: str
    """Trajectory of the run folder, or entry of the predictions."""
    origin: str
    """Policy or model."""
    wave: int
    patch: str
    patch_digest: str
    """Of the changed lines; empty: nothing was changed."""
    kind: VerdictKind
    """Judged by visible and regression tests."""
    reason: str
    failing: tuple[str, ...]
    """Visible tests that do not pass."""
    regressions: tuple[str, ...]
    """Tests that passed before and do not pass now."""
    spending: Spending
    value: float = 0.0
    """Share of the visible tests that pass, less half the share of regressions: what guides a search."""
    parent: str = ""
    """Candidate whose first turns it has; empty: a chain, or a patch of a file."""
    num_shared_turns: int = 0
    """Turns of the parent."""
    num_turns: int = 0
    """All turns, those of the parent included."""
    is_open: bool = False
    """The search stopped it, and a branch can continue it."""
    num_errors: int = 0
    """Own actions with a format or tool error."""
    mean_log_prob: float = 0.0
    """Over the tokens that it sampled itself, in nats."""
    states: tuple[str, ...] = Field(default=(), exclude=True)
    """States that its turns start in."""
    end_state: str = Field(default="", exclude=True)
    """Digest of its files and of the knowledge whether they pass."""
    features: CandidateSubmission | None = Field(default=None, exclude=True)
    """For a scorer; of an episode only."""
    confidence: float | None = None
    """Chance that hidden tests pass, as a scorer sees it; None: without a scorer."""

    @property
    def is_valid(self) -> bool:
        """True where it was judged, and is no exploit."""
        return self.kind in (VerdictKind.PASSED, VerdictKind.FAILED)

    @property
    def is_passed(self) -> bool:
        """True for a change after which the visible tests pass."""
        return self.is_valid and not self.failing and bool(self.patch_digest)


def make_candidate(
    view: Task, id_: str, origin: str, wave: int, patch: str, verdict: Verdict, spending: Spending, **more: Any
) -> Candidate:
    """Make the record of a patch that was judged on ``view``; ``more`` are fields of an episode."""

    def fails(test_id: str) -> bool:
        result = verdict.tests.get(test_id)
        return result is None or result.outcome is not TestOutcome.PASSED

    failing, regressions = tuple(filter(fails, view.visible_tests)), tuple(filter(fails, view.pass_to_pass))
    value = 1.0 - len(failing) / len(view.visible_tests) - 0.5 * len(regressions) / max(1, len(view.pass_to_pass))
    is_judged = verdict.kind in (VerdictKind.PASSED, VerdictKind.FAILED) and bool(verdict.tests)
    return Candidate(
        id=id_,
        origin=origin,
        wave=wave,
        patch=patch,
        patch_digest=patch_digest(patch),
        kind=verdict.kind,
        reason=verdict.reason,
        failing=failing,
        regressions=regressions,
        spending=spending,
        value=max(0.0, value) if is_judged else 0.0,
        **more,
    )


def candidate_of(view: Task, trajectory: Trajectory, wave: int, price: Price | None) -> Candidate:
    """Make the record of an episode on ``view``; ``price`` is that of its model."""
    num_shared, turns = num_shared_turns(trajectory), trajectory.turns
    ledger = trajectory.ledger
    is_tested = bool(turns) and is_test_run(turns[-1])
    return make_candidate(
        view,
        trajectory.id,
        trajectory.policy_id,
        wave,
        trajectory.final_patch,
        trajectory.verdict,
        spending_of(trajectory, price),
        parent=trajectory.parent.trajectory_id if trajectory.parent else "",
        num_shared_turns=num_shared,
        num_turns=len(turns),
        is_open=trajectory.stop_reason is StopReason.SEARCH_LIMIT and trajectory.verdict.is_valid,
        num_errors=sum(bool(turn.error) for turn in turns[num_shared:]),
        mean_log_prob=float(ledger.log_prob[ledger.is_action].mean()) if ledger.is_action.any() else 0.0,
        states=tuple(turn.state for turn in turns),
        end_state=hashlib.sha256(f"{trajectory.final_patch}\0{is_tested}".encode(errors="replace")).hexdigest()[:16],
        features=submission_of(trajectory),
    )


class Chooser:
    """Chooses by visible tests, then regressions, then as it is configured."""

    def __init__(self, config: ChoiceConfig, *, is_abstaining: bool, scorer: OutcomeScorer | None = None) -> None:
        """``scorer`` is the one that ``config`` names."""
        self._config = config
        self._is_abstaining = is_abstaining
        self._scorer = scorer

    def scored(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with their confidence; only those that pass have one, and only by a scorer."""
        siblings = [it.features for it in candidates if it.features is not None]
        return [self._with_confidence(it, siblings) for it in candidates]

    def _with_confidence(self, candidate: Candidate, siblings: Sequence[CandidateSubmission]) -> Candidate:
        if self._scorer is None or candidate.features is None or not candidate.is_passed:
            return candidate
        chance = self._scorer.probability(candidate.features, siblings)
        return candidate.model_copy(update={"confidence": chance})

    def choose(self, candidates: Sequence[Candidate]) -> tuple[Candidate | None, str]:
        """Return the best of scored candidates and why; None where it abstains, or nothing was changed."""
        changed = [candidate for candidate in candidates if candidate.patch_digest]
        votes = Counter(candidate.patch_digest for candidate in changed)
        valid = [candidate for candidate in changed if candidate.is_valid]
        passed = [candidate for candidate in valid if candidate.is_passed]
        if not valid or (self._is_abstaining and not passed):
            return None, f"abstained: none of {len(candidates)} candidates passes the visible tests"
        best = min(passed or valid, key=lambda it: self._rank(it, votes))  # the first of those that are level
        if not passed:
            return best, f"fails {len(best.failing)} visible tests, the fewest of {len(valid)}; nothing passes them"
        least = self._config.min_confidence
        if best.confidence is not None and best.confidence < least and self._is_abstaining:
            return None, f"abstained: the best has confidence {best.confidence:.2f}, less than {least:g}"
        return best, self._reason(best, len(passed), len(candidates), votes)

    def _rank(self, candidate: Candidate, votes: Counter[str]) -> tuple[float, ...]:
        by = {"log_prob": candidate.mean_log_prob, "scorer": candidate.confidence or 0.0}.get(self._config.by, 0.0)
        return len(candidate.failing), len(candidate.regressions), -by, -votes[candidate.patch_digest]

    def _reason(self, best: Candidate, num_passed: int, num: int, votes: Counter[str]) -> str:
        parts = [f"{num_passed} of {num} candidates pass the visible tests"]
        if num_passed > 1:
            parts.append(f"this one has the fewest regressions ({len(best.regressions)})")
            if self._config.by == "log_prob":
                parts.append(f"the mean log-prob {best.mean_log_prob:.2f}")
            parts.append(f"and {votes[best.patch_digest]} of them propose it")
        elif best.regressions:
            parts.append(f"this one with {len(best.regressions)} regressions")
        if best.confidence is not None:
            parts.append(f"confidence {best.confidence:.2f}")
        return ", ".join(parts)
