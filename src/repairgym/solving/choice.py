"""The choice among candidates: visible tests, then regressions, then agreement, then abstention.

Reads candidates; makes the chosen one and the reason in words. Guarantees: a candidate without a change, or one that
deceives the tests, is never a pass; hidden tests have no part in it; equal candidates give an equal choice, the earlier
of two that are level.
"""

from collections import Counter
from collections.abc import Sequence

from repairgym.analysis.candidates import patch_digest
from repairgym.records import Record, Task, TestOutcome, Verdict, VerdictKind
from repairgym.solving.spending import Spending


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

    @property
    def is_passed(self) -> bool:
        """True for a change after which the visible tests pass."""
        is_honest = self.kind in (VerdictKind.PASSED, VerdictKind.FAILED)
        return is_honest and not self.failing and bool(self.patch_digest)


def make_candidate(
    view: Task, id_: str, origin: str, wave: int, patch: str, verdict: Verdict, spending: Spending
) -> Candidate:
    """Make the record of a patch that was judged on ``view``."""

    def fails(test_id: str) -> bool:
        result = verdict.tests.get(test_id)
        return result is None or result.outcome is not TestOutcome.PASSED

    return Candidate(
        id=id_,
        origin=origin,
        wave=wave,
        patch=patch,
        patch_digest=patch_digest(patch),
        kind=verdict.kind,
        reason=verdict.reason,
        failing=tuple(filter(fails, view.visible_tests)),
        regressions=tuple(filter(fails, view.pass_to_pass)),
        spending=spending,
    )


def choose(candidates: Sequence[Candidate], *, is_abstaining: bool) -> tuple[Candidate | None, str]:
    """Return the best candidate and why; None where nothing passes and ``is_abstaining``, or nothing was changed."""
    changed = [candidate for candidate in candidates if candidate.patch_digest]
    votes = Counter(candidate.patch_digest for candidate in changed)
    valid = [candidate for candidate in changed if candidate.kind in (VerdictKind.PASSED, VerdictKind.FAILED)]
    passed = [candidate for candidate in valid if candidate.is_passed]
    if not valid or (is_abstaining and not passed):
        return None, f"abstained: none of {len(candidates)} candidates passes the visible tests"
    best = min(
        passed or valid, key=lambda it: (len(it.failing), len(it.regressions), -votes[it.patch_digest])
    )  # the first of those that are level
    if not passed:
        return best, f"fails {len(best.failing)} visible tests, the fewest of {len(valid)}; nothing passes them"
    parts = [f"{len(passed)} of {len(candidates)} candidates pass the visible tests"]
    if len(passed) > 1:
        parts.append(f"this one has the fewest regressions ({len(best.regressions)})")
        parts.append(f"and {votes[best.patch_digest]} of them propose it")
    elif best.regressions:
        parts.append(f"this one with {len(best.regressions)} regressions")
    return best, ", ".join(parts)
