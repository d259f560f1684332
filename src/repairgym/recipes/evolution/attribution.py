"""Attribution of failures: is the task at fault, or the trajectory?

Reads tasks, and failed submissions of stored episodes. Makes one `Attribution` per submission. A task is at fault when
its own repair does not pass, when two gradings of one submission disagree, or when no test that the agent could run
tells that the submission is wrong. Else the trajectory is. Guarantees: every judgement comes from a grading of its own
with all tests; equal submissions are graded once; what the infrastructure broke is attributed to neither.

After EigenData (arXiv 2601.22607), where a language model decides this; here the rules are executed.
"""

import hashlib
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from repairgym.grading.grader import Grader
from repairgym.grading.stages import Files
from repairgym.records import Record, Storable, Task, TestOutcome, Verdict, VerdictKind
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.test_files import function_id, held_in
from repairgym.tasks.record_lines import RecordLines

ATTRIBUTION_FILE = "attribution.jsonl"
Reason = Literal[
    "gold_fails", "gradings_disagree", "visible_tests_too_weak", "unseen_tests_broken", "rejected_behind_tests",
    "no_change", "bug_remains", "breaks_passing_tests", "breaks_the_run", "exploited", "invalid",
]  # fmt: skip
TASK_FAULTS: Mapping[Reason, str] = {
    "gold_fails": "its own repair does not pass",
    "gradings_disagree": "the same submission was graded otherwise",
    "visible_tests_too_weak": "every test in the agent's tree passes, a hidden test of the bug fails",
    "unseen_tests_broken": "only regression tests that nobody can see fail",
    "rejected_behind_tests": "every test passes, hidden ones too; a judge rejected the submission",
}
"""Reasons by which a task is at fault, in words."""
TRAJECTORY_FAULTS: Mapping[Reason, str] = {
    "no_change": "nothing was changed",
    "bug_remains": "a failing test that the agent could run still fails",
    "breaks_passing_tests": "the bug is repaired as far as seen, and a passing test that the agent could run fails",
    "breaks_the_run": "the tests could not run, or not to their end",
    "exploited": "the submission deceives the grader",
}
"""Reasons by which the trajectory is at fault, in words."""


class Attribution(Record):
    """The party at fault in the failure of one submission."""

    key: str
    """Digest of task and submission."""
    task_id: str
    trajectory_ids: tuple[str, ...]
    """Episodes that delivered the submission."""
    fault: Literal["task", "trajectory", "neither"]
    reason: Reason
    detail: Storable = ""
    """The first test that decided, or the reason of the verdict."""


@dataclass
class Failure:
    """A failed submission of one or more episodes."""

    task: Task
    files: Files
    verdict: Verdict
    """The stored one, of the first episode."""
    trajectory_ids: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Digest of task and submission."""
        return hashlib.sha256(f"{self.task.digest()}{json.dumps(self.files, sort_keys=True)}".encode()).hexdigest()[:32]


def attribution_lines(path: Path) -> RecordLines[Attribution]:
    """Return the attributions in a file, by their keys."""
    return RecordLines(path, Attribution, lambda attribution: attribution.key, "remove it and run the command again")


async def attribute_failures(
    failures: Iterable[Failure], grader: Grader, num_concurrent: int
) -> AsyncGenerator[Attribution, None]:
    """Yield the attribution of each of ``failures``; ``grader`` runs all tests."""
    gold: dict[str, Verdict] = {}

    async def attribute(failure: Failure) -> Attribution:
        task = failure.task
        if task.id not in gold:
            gold[task.id] = await grader.grade(task, dict(task.gold_files))
        repaired = gold[task.id]
        if repaired.kind is not VerdictKind.PASSED:
            reason: Reason = "gold_fails" if repaired.is_valid else "invalid"
            return _attributed(failure, reason, f"{repaired.kind}: {repaired.reason}")
        if not failure.files:
            return _attributed(failure, "no_change", "")
        return attribute_failure(failure, await grader.grade(task, dict(failure.files)))

    async with aclosing(ordered_map(attribute, failures, num_concurrent)) as attributed:
        async for _, attribution in attributed:
            yield attribution


def attribute_failure(failure: Failure, again: Verdict) -> Attribution:
    """Return whose fault ``failure`` was; ``again`` is a second grading of it, with all tests."""
    task, first = failure.task, failure.verdict
    if again.kind is VerdictKind.INVALID:
        return _attributed(failure, "invalid", again.reason)
    if again.kind is VerdictKind.EXPLOITED:
        return _attributed(failure, "exploited", again.reason)
    if again.kind is VerdictKind.PASSED or (other := _differing(first, again)):
        detail = again.reason if again.kind is VerdictKind.PASSED else other
        return _attributed(failure, "gradings_disagree", detail)
    failing = [i for i in (*task.fail_to_pass, *task.pass_to_pass) if not _passes(again, i)]
    if failing and not any(_ran(again, test_id) for test_id in failing):
        return _attributed(failure, "breaks_the_run", again.reason)
    seen = [test_id for test_id in failing if is_seen(task, test_id)]
    return _attributed(failure, *_by_tests(task, failing, seen, again.reason))


def _by_tests(task: Task, failing: Sequence[str], seen: Sequence[str], reason: str) -> tuple[Reason, str]:
    if not failing:
        return "rejected_behind_tests", reason
    bug = set(task.fail_to_pass)
    if seen:
        remains = [test_id for test_id in seen if test_id in bug]
        return ("bug_remains", remains[0]) if remains else ("breaks_passing_tests", seen[0])
    return ("visible_tests_too_weak" if bug & set(failing) else "unseen_tests_broken"), failing[0]


def is_seen(task: Task, test_id: str) -> bool:
    """Return True when the agent's tree holds the test."""
    path, _, name = function_id(test_id).partition("::")
    text = task.base_files.get(path, "")
    if text is None:
        return False
    return path not in task.base_files or name in held_in(path, text)


def _differing(first: Verdict, again: Verdict) -> str:
    """Return a test that ran in both gradings and passed in one; empty without one."""
    ran = (test_id for test_id in first.tests if _ran(first, test_id) and _ran(again, test_id))
    return next((test_id for test_id in ran if _passes(first, test_id) != _passes(again, test_id)), "")


def _ran(verdict: Verdict, test_id: str) -> bool:
    return test_id in verdict.tests and verdict.tests[test_id].outcome is not TestOutcome.MISSING


def _passes(verdict: Verdict, test_id: str) -> bool:
    return test_id in verdict.tests and verdict.tests[test_id].outcome is TestOutcome.PASSED


def _attributed(failure: Failure, reason: Reason, detail: str) -> Attribution:
    return Attribution(
        key=failure.key,
        task_id=failure.task.id,
        trajectory_ids=tuple(failure.trajectory_ids),
        fault="task" if reason in TASK_FAULTS else "trajectory" if reason in TRAJECTORY_FAULTS else "neither",
        reason=reason,
        detail=detail,
    )
