"""Facts of episodes, read once per trajectory.

Reads a store's rows and documents (no tokens); makes `EpisodeFacts` records for all counts of this package. Guarantee:
the role of a tool comes from :mod:`repairgym.agent.tools.roles` alone.
"""

import re
from collections.abc import Iterator

from repairgym.agent.tools.roles import DEFAULT_ROLES, ToolRoles, is_blind_submit, is_edit, is_test_run
from repairgym.records import Finding, Record, StopReason, Turn, VerdictKind
from repairgym.rollout.rows import Document, TrajectoryRow
from repairgym.rollout.store import RunStore

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)

UNPARSED = "(unparsed)"
"""Tool name of an action that could not be parsed."""


class EpisodeFacts(Record):
    """Facts of one trajectory."""

    id: str
    phase: str
    step: int
    task_id: str
    verdict: VerdictKind
    stop_reason: StopReason
    tools: tuple[str, ...]
    """Tool of each turn, `UNPARSED` where there was none."""
    num_tokens: int
    num_action_tokens: int
    num_edits: int
    num_test_runs: int
    num_format_errors: int
    num_tool_errors: int
    num_repeats: int
    """Actions equal to an earlier one with no new edit between them."""
    is_blind_submit: bool
    """Submitted with no test run after the last edit."""
    findings: tuple[str, ...]
    """Names of the exploit detectors that found an exploit."""
    num_tests: int
    """Tests of the verdict."""
    num_tests_passed: int
    num_repeated_builds: int = 0
    """Runs of tests or build on code that an earlier run had tested already."""
    num_thought_chars: int = 0
    """Characters of the actions within ``<think>``."""
    num_action_chars: int = 0
    error_class: str = ""
    """Of the verdict's main error (paper A's error table); empty when it has none."""
    evidence: tuple[Finding, ...] = ()
    """Every finding but notes."""
    disabled_gates: tuple[str, ...] = ()
    """Gates that the grading skipped."""

    @property
    def is_suspicious(self) -> bool:
        """True for a pass with a suspicious finding."""
        return self.verdict is VerdictKind.PASSED and any(finding.severity == "suspicious" for finding in self.evidence)

    @property
    def num_turns(self) -> int:
        """Number of actions."""
        return len(self.tools)

    @property
    def reward(self) -> float | None:
        """1 when passed, None when invalid, else 0."""
        return None if self.verdict is VerdictKind.INVALID else float(self.verdict is VerdictKind.PASSED)


def read_episode(row: TrajectoryRow, document: Document, roles: ToolRoles = DEFAULT_ROLES) -> EpisodeFacts:
    """Return the facts of one trajectory."""
    turns = document.turns
    verdict = document.verdict
    return EpisodeFacts(
        id=row.id,
        phase=row.phase,
        step=row.step,
        task_id=row.task_id,
        verdict=row.verdict,
        stop_reason=row.stop_reason,
        tools=tuple(turn.tool or UNPARSED for turn in turns),
        num_tokens=row.num_tokens,
        num_action_tokens=row.num_action_tokens,
        num_edits=sum(is_edit(turn, roles) for turn in turns),
        num_test_runs=sum(is_test_run(turn, roles) for turn in turns),
        num_format_errors=sum(turn.error == "format" for turn in turns),
        num_tool_errors=sum(turn.error == "tool" for turn in turns),
        num_repeats=count_repeats(turns, roles),
        is_blind_submit=is_blind_submit(row.stop_reason, turns, roles),
        findings=tuple(finding.detector for finding in verdict.findings if finding.severity == "exploit"),
        num_tests=len(verdict.tests),
        num_tests_passed=sum(result.outcome == "passed" for result in verdict.tests.values()),
        num_repeated_builds=count_repeated_builds(turns, roles),
        num_thought_chars=sum(len(thought) for turn in turns for thought in _THOUGHT.findall(turn.action)),
        num_action_chars=sum(len(turn.action) for turn in turns),
        error_class=verdict.main_error.error_class if verdict.main_error else "",
        evidence=tuple(finding for finding in verdict.findings if finding.severity != "note"),
        disabled_gates=tuple(verdict.disabled_gates),
    )


def read_episodes(
    store: RunStore, *, phase: str | None = None, phase_prefix: str | None = None, roles: ToolRoles = DEFAULT_ROLES
) -> Iterator[EpisodeFacts]:
    """Yield the episodes of a phase, or of all phases that begin with ``phase_prefix``."""
    for row, document in store.documents(phase=phase, phase_prefix=phase_prefix):
        yield read_episode(row, document, roles)


def count_repeats(turns: tuple[Turn, ...], roles: ToolRoles) -> int:
    """Count actions equal to an earlier one since the files last changed in a new way; a sign of a loop."""
    seen: set[str] = set()
    num_repeats = 0
    for turn in turns:
        action = turn.action.strip()
        if action in seen:
            num_repeats += 1
            continue
        if is_edit(turn, roles):
            seen.clear()
        seen.add(action)
    return num_repeats


def count_repeated_builds(turns: tuple[Turn, ...], roles: ToolRoles) -> int:
    """Count runs of tests or build with no edit since the previous run (paper A, section on policy shift)."""
    is_judged, num_repeated = False, 0
    for turn in turns:
        if is_edit(turn, roles):
            is_judged = False
        elif is_test_run(turn, roles):
            num_repeated += is_judged
            is_judged = True
    return num_repeated
