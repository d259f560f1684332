"""The official verdict on a submission: the test lists of an imported task's record, without our other gates.

Reads a task and its verdict. Makes what the rules of the record's own harness say about the same run: tests that it
lists as failing must pass, those that it lists as passing must pass or be skipped, and nothing else counts.
Guarantees: nothing runs again; where a test of the record has no certified outcome on this machine, a submission that
passes all others is *undecided*, never resolved.
"""

from typing import Literal

from repairgym.records import Task, TestOutcome, Verdict

OfficialKind = Literal["resolved", "unresolved", "undecided", "error"]
_MAINTAINED = (TestOutcome.PASSED, TestOutcome.SKIPPED)


def official_kind(task: Task, verdict: Verdict) -> OfficialKind | None:
    """Return the official verdict; None for a task that was not imported."""
    passed_before, undecided = task.certificate.passed_before, task.certificate.undecided
    if passed_before is None or undecided is None:
        return None
    if not verdict.is_valid:
        return "error"
    outcomes = {name: result.outcome for name, result in verdict.tests.items()}
    fixed = {*task.fail_to_pass, *passed_before}
    is_fixed = all(outcomes.get(name) is TestOutcome.PASSED for name in fixed)
    if not is_fixed or not all(outcomes.get(name) in _MAINTAINED for name in task.pass_to_pass):
        return "unresolved"
    return "undecided" if undecided else "resolved"
