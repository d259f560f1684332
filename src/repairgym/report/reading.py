"""A trajectory ready to read, turn by turn: the one reader of the report and the viewer.

Reads a stored trajectory, its task and its tokens; makes a `Reading` for the templates. Guarantees: the text is bounded
however long the episode; cut text is counted; each finding is shown once, at its line of the patch or with an extract
of the file; any text is accepted as a patch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from tokenizers import Tokenizer

from repairgym.diffs.parse import NumberedRow, numbered_rows
from repairgym.ledger import TokenLedger
from repairgym.records import Attempt, Finding, Task, TestOutcome, TestResult, Trajectory, Turn
from repairgym.report.safe_text import MAX_CHARS, block
from repairgym.report.tokens import Piece, decode, read_pieces
from repairgym.rollout.rows import Document

Tokens = tuple[TokenLedger, Tokenizer] | None
"""Tokens and tokenizer of a trajectory, if both can be read."""
MAX_ROWS = 1_500
MAX_LINE_CHARS = 2_000
_CONTEXT_LINES = 3


@dataclass(frozen=True)
class DiffRow(NumberedRow):
    """One line of a diff, with the findings on it."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Extract:
    """A finding outside the diff's rows, with the submitted lines around its place."""

    finding: Finding
    lines: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Diff:
    """A diff ready to show."""

    rows: tuple[DiffRow, ...]
    extracts: tuple[Extract, ...] = ()
    num_left_out: int = 0
    num_added: int = 0
    num_removed: int = 0


def read_diff(patch: str, findings: Sequence[Finding] = (), files: Mapping[str, str | None] | None = None) -> Diff:
    """Return the rows of ``patch``; extracts come from ``files``, the submitted files."""
    rows = list(numbered_rows(patch))
    waiting = list(findings)
    shown = tuple(_with_findings(row, waiting) for row in rows[:MAX_ROWS])
    return Diff(
        rows=shown,
        extracts=tuple(_extract(finding, files or {}) for finding in waiting),
        num_left_out=len(rows) - len(shown),
        num_added=sum(row.kind == "add" for row in rows),
        num_removed=sum(row.kind == "del" for row in rows),
    )


def _with_findings(row: NumberedRow, waiting: list[Finding]) -> DiffRow:
    """Return the row with the findings on its line, which are removed from ``waiting``."""
    place = (row.path, row.new_number)
    here = tuple(finding for finding in waiting if row.new_number is not None and (finding.path, finding.line) == place)
    for finding in here:
        waiting.remove(finding)
    return DiffRow(row.path, row.kind, row.text[:MAX_LINE_CHARS], row.old_number, row.new_number, here)


def _extract(finding: Finding, files: Mapping[str, str | None]) -> Extract:
    text = files.get(finding.path)
    if not text or not finding.line:
        return Extract(finding)
    first = max(1, finding.line - _CONTEXT_LINES)
    lines = text.split("\n")[first - 1 : finding.line + _CONTEXT_LINES]
    return Extract(finding, tuple((first + index, line[:MAX_LINE_CHARS]) for index, line in enumerate(lines)))


MAX_TURNS = 200
"""Turns of one reading."""
_READING_CHARS = 1_500_000
_MIN_BLOCK_CHARS = 1_000
_MAX_SHADED_TOKENS = 1_000
_MAX_TESTS = 500
_THOUGHT = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>\s*(?P<action>.*)", re.DOTALL)
_CALL = re.compile(r"```|<tool_call>|<function[=_]")
_ROLE_MARKS = re.compile(r"<\|im_start\|>(?:system|user|assistant)\n?|<\|im_end\|>\n?|<\|endoftext\|>")
NOT_RUN = "not run"
_OUTCOMES = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING, TestOutcome.SKIPPED, TestOutcome.PASSED)


@dataclass(frozen=True)
class Growth:
    """Changes of one turn to the files."""

    step: str
    """Diff against the state before the turn; empty when the turn changed nothing."""
    whole: str
    """Diff against the code that the agent got."""


@dataclass(frozen=True)
class TurnReading:
    """One turn."""

    number: int
    """From 1."""
    turn: Turn
    attempt: Attempt | None
    """The attempt of an outer loop that begins here (paper A, full pipeline)."""
    thought: Markup
    action: Markup
    pieces: tuple[Piece, ...]
    """Tokens of the action; empty when they are absent, too many, or hold a thought."""
    arguments: Markup
    """Of tools that take more than the text behind their name; empty otherwise."""
    observation: Markup
    is_cut: bool
    """Part of the observation or the action is left out."""
    change: Diff | None
    whole: Diff | None
    """The diff after this turn; None when this turn changed nothing."""


@dataclass(frozen=True)
class TestLine:
    """One test of the verdict."""

    __test__ = False

    name: str
    result: TestResult
    role: str
    """``must be fixed``, ``must keep passing`` or empty."""
    is_visible: bool
    """The agent could run it."""
    outcome: str
    """``not run`` where the run had ended before."""


@dataclass(frozen=True)
class Reading:
    """A trajectory ready to read."""

    document: Document | Trajectory
    task: Task | None
    prompt: Markup
    """The context before the first action; empty without tokenizer or tokens."""
    turns: tuple[TurnReading, ...]
    first_turn: int
    num_turns: int
    patch: Diff
    tests: tuple[TestLine, ...]
    num_tests: int
    num_tests_passed: int
    num_tests_not_run: int
    is_shaded: bool
    """True when actions can be shaded by likelihood."""


def read(
    document: Document | Trajectory,
    task: Task | None,
    ledger: TokenLedger | None,
    tokenizer: Tokenizer | None,
    *,
    growths: Sequence[Growth] = (),
    first_turn: int = 1,
    max_chars: int = _READING_CHARS,
    max_tests: int = _MAX_TESTS,
) -> Reading:
    """Make a trajectory ready to read, from ``first_turn`` on; task, tokens and tokenizer are None where absent.

    ``growths`` are the changes of each turn to the files, or nothing. ``max_chars`` bounds the text of all turns
    together, ``max_tests`` the tests of the verdict.
    """
    num_turns = len(document.turns)
    first_turn = max(1, min(first_turn, num_turns))
    shown = document.turns[first_turn - 1 : first_turn - 1 + MAX_TURNS]
    attempts = {attempt.first_turn + 1: attempt for attempt in document.attempts}
    changes = dict(enumerate(growths, 1))
    room = max(_MIN_BLOCK_CHARS, min(MAX_CHARS, max_chars // max(1, len(shown))))
    tokens = (ledger, tokenizer) if ledger is not None and tokenizer is not None else None
    tests = _tests(document, task)
    return Reading(
        document=document,
        task=task,
        prompt=_prompt(document, tokens),
        turns=tuple(
            _read_turn(turn, number, attempts.get(number), changes.get(number), tokens, room)
            for number, turn in enumerate(shown, first_turn)
        ),
        first_turn=first_turn,
        num_turns=num_turns,
        patch=read_diff(document.final_patch, document.verdict.findings, document.final_files),
        tests=tuple(tests[:max_tests]),
        num_tests=len(tests),
        num_tests_passed=sum(test.result.outcome is TestOutcome.PASSED for test in tests),
        num_tests_not_run=sum(test.outcome == NOT_RUN for test in tests),
        is_shaded=tokens is not None and len(tokens[0]) > 0,
    )


def split_thought(text: str) -> tuple[str, str]:
    """Return (thought, action) of a completion: the thought is in think marks, or precedes a marked call."""
    if match := _THOUGHT.fullmatch(text):
        return match["thought"].strip(), match["action"]
    call = _CALL.search(text)
    return (text[: call.start()].strip(), text[call.start() :]) if call else ("", text)


def _prompt(document: Document | Trajectory, tokens: Tokens) -> Markup:
    if tokens is None or not document.turns:
        return Markup("")
    ledger, tokenizer = tokens
    end = document.turns[0].action_span[0]
    return block(_ROLE_MARKS.sub("", decode(tokenizer, ledger.token_id[:end].tolist())).strip())


def _read_turn(
    turn: Turn, number: int, attempt: Attempt | None, growth: Growth | None, tokens: Tokens, room: int
) -> TurnReading:
    thought, action = split_thought(turn.action)
    return TurnReading(
        number=number,
        turn=turn,
        attempt=attempt,
        thought=block(thought, room),
        action=block(action, room),
        pieces=() if thought else _pieces(turn, tokens, room),
        arguments=_arguments(turn, room),
        observation=block(turn.observation.strip("\n"), room),
        is_cut=max(len(turn.observation), len(turn.action)) > room,
        change=read_diff(growth.step) if growth and growth.step else None,
        whole=read_diff(growth.whole) if growth and growth.step and growth.whole else None,
    )


def _pieces(turn: Turn, tokens: Tokens, room: int) -> tuple[Piece, ...]:
    start, end = turn.action_span
    most = min(_MAX_SHADED_TOKENS, room)
    if tokens is None or not 0 <= start < end <= min(len(tokens[0]), start + most):
        return ()
    return tuple(read_pieces(*tokens, start, end - start))


def _arguments(turn: Turn, room: int) -> Markup:
    if set(turn.arguments) <= {"argument"}:
        return Markup("")
    try:
        return block(json.dumps(turn.arguments, indent=2, ensure_ascii=False), room)
    except RecursionError:
        return Markup("nested too deeply to show")


def _tests(document: Document | Trajectory, task: Task | None) -> list[TestLine]:
    """Return the tests of the verdict, those that did not pass first."""
    roles = dict.fromkeys(task.pass_to_pass, "must keep passing") if task else {}
    roles |= dict.fromkeys(task.fail_to_pass, "must be fixed") if task else {}
    visible = frozenset(task.visible_tests) if task else frozenset()
    lines = [
        TestLine(name, result, roles.get(name, ""), name in visible, _outcome(result, document.verdict.is_stopped))
        for name, result in document.verdict.tests.items()
    ]
    return sorted(lines, key=lambda line: (_OUTCOMES.index(line.result.outcome), line.name))


def _outcome(result: TestResult, is_stopped: bool) -> str:
    return NOT_RUN if is_stopped and result.outcome is TestOutcome.MISSING else result.outcome.value
