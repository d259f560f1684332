"""Candidates: the facts about a task that filters read, small enough for tens of thousands in memory.

Reads certified and unbuilt tasks, the evidence of `repairgym tasks verify --evidence`, and solve rates. Makes
`Candidate` records. Guarantees: an unmeasured value is None, never a default that a filter could mistake for a value.
"""

import hashlib
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from repairgym.diffs.parse import PatchError, num_changed_lines, parse_patch
from repairgym.records import Split, Task
from repairgym.tasks.build.verification import TaskEvidence
from repairgym.tasks.solve_rates import SolveRate
from repairgym.tasks.unbuilt import UnbuiltTask

_DEFINED = re.compile(r"^\s*(?:async\s+def|def|class)\s+(\w+)|^(\w+)\s*(?::[^=]*)?=(?!=)")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Candidate:
    """Facts about one task."""

    id: str
    source: str
    """Task source, or exchange format of an unbuilt task."""
    package: str
    function: str = ""
    """File and function of the bug, without one the first changed file; empty for unbuilt tasks."""
    split: Split | None = None
    created_at: datetime | None = None
    num_fail_to_pass: int = 0
    num_files: int | None = None
    """Files that the gold patch changes; None without a readable patch."""
    num_lines: int | None = None
    patch_lines: frozenset[int] = frozenset()
    """Digests of the lines of the gold patch, context included."""
    new_names: frozenset[str] = frozenset()
    """Words only in the added lines of the gold patch."""
    unmentioned_names: tuple[str, ...] | None = None
    """Names that only the repair defines, the tests use and the issue omits; None without a test patch."""
    failure_messages: tuple[str, ...] | None = None
    """First line of each failure on the empty patch."""
    num_runs: int | None = None
    """The smaller number of equal runs, with or without the repair."""
    num_unstable_tests: int = 0
    is_empty_failing: bool | None = None
    """The empty patch failed in every run."""
    build_s: float | None = None
    quality_scores: dict[str, float] = field(default_factory=dict)
    solve_rate: SolveRate | None = None
    is_thin: bool | None = None
    """The replay judge cannot tell a repair from one for the tests only; None where nobody counted."""
    sighting: str | None = None
    """Place in the agent's sandbox that shows the answer; empty for none."""


def describe(
    task: Task | UnbuiltTask, evidence: TaskEvidence | None = None, solve_rate: SolveRate | None = None
) -> Candidate:
    """Describe ``task``; its ``evidence`` takes precedence over its certificate."""
    if isinstance(task, UnbuiltTask):
        source, package = str(task.format), task.repository
    else:
        source, package = str(task.source), task.provenance.package
    candidate = Candidate(
        id=task.id,
        source=source,
        package=package,
        split=task.split,
        created_at=parse_time(task.created_at),
        num_fail_to_pass=len(task.fail_to_pass),
        solve_rate=solve_rate,
        **_patch_facts(task.gold_patch),
    )
    if isinstance(task, UnbuiltTask):
        names = find_unmentioned(task.gold_patch, task.test_patch, task.issue) if task.test_patch else None
        return replace(candidate, unmentioned_names=names, quality_scores=task.quality_scores)
    runs, replay = evidence or task.certificate, task.certificate.replay
    return replace(
        candidate,
        function=place_of(task),
        failure_messages=tuple(evidence.failures.values()) if evidence else None,
        num_runs=min(runs.num_empty_runs, runs.num_gold_runs),
        num_unstable_tests=len(runs.unstable_tests),
        is_empty_failing=runs.num_empty_failed == runs.num_empty_runs,
        build_s=runs.empty_duration_s,
        is_thin=replay.is_thin if replay and replay.num_deciding_inputs is not None else None,
    )


def place_of(task: Task) -> str:
    """Return file and function of the bug, without a location the first changed file."""
    return f"{task.location.path}:{task.location.name}" if task.location else min(task.gold_files)


def _patch_facts(patch: str) -> dict[str, Any]:
    try:
        files = parse_patch(patch)
    except PatchError:
        files = []
    if not files:
        return {}
    hunks = [hunk for file in files for hunk in file.hunks]
    lines = (line.split() for hunk in hunks for line in _signed(hunk.lines))
    before = {word for hunk in hunks for line in hunk.side("-") for word in _WORD.findall(line)}
    after = {word for hunk in hunks for line in hunk.side("+") for word in _WORD.findall(line)}
    return {
        "num_files": len(files),
        "num_lines": num_changed_lines(patch),
        "new_names": frozenset(after - before),
        "patch_lines": frozenset(_digest(" ".join(words)) for words in lines if len(words) > 1),
    }


def _signed(lines: tuple[str, ...]) -> list[str]:
    """Separate sign and text, so that a removed line differs from the same context line."""
    return [f"{line[0] if line[0] != ' ' else '='} {line[1:]}" for line in lines]


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def find_unmentioned(gold_patch: str, test_patch: str, issue: str) -> tuple[str, ...]:
    """Return new names of ``gold_patch`` that ``test_patch`` uses and ``issue`` omits, sorted; compares text only."""
    try:
        gold, tests = parse_patch(gold_patch), parse_patch(test_patch)
    except PatchError:
        return ()
    lines = [line for file in gold for hunk in file.hunks for line in hunk.lines]
    before = {word for line in lines if line[0] != "+" for word in _WORD.findall(line[1:])}
    defined = {match[1] or match[2] for line in lines if line[0] == "+" and (match := _DEFINED.match(line[1:]))}
    added = (line[1:] for file in tests for hunk in file.hunks for line in hunk.lines if line[0] == "+")
    used = {word for line in added for word in _WORD.findall(line)}
    return tuple(sorted((defined & used) - before - set(_WORD.findall(issue))))


def parse_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time, in UTC without a zone; return None for anything else."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
