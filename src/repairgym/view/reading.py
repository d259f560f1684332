"""A trajectory ready to read: what was said and done turn by turn, and what came of it.

Reads a stored trajectory, its task and its tokens; makes a `Reading` for a template. Invariants: the text of a page is
bounded however long the episode, and what is left out is counted and has an address; what cannot be read hides nothing
else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from tokenizers import Tokenizer

from repairgym.errors import InputError
from repairgym.ledger import TokenLedger
from repairgym.records import Attempt, Task, TestOutcome, TestResult, Turn
from repairgym.rollout.rows import Document
from repairgym.view.folders import Viewed
from repairgym.view.listing import Listed
from repairgym.view.patches import Diff, read_diff
from repairgym.view.reader import RunReader
from repairgym.view.replay import Growth, grow
from repairgym.view.text import MAX_CHARS, block
from repairgym.view.tokens import Piece, stretch

MAX_TURNS = 200
"""Turns on one page."""
_PAGE_CHARS = 1_500_000
_MIN_BLOCK_CHARS = 1_000
_MAX_SHADED_TOKENS = 1_000
_MAX_TESTS = 500
_THOUGHT = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>\s*(?P<action>.*)", re.DOTALL)
_CALL = re.compile(r"```|<tool_call>|<function[=_]")
_OUTCOME_ORDER = {
    outcome: rank
    for rank, outcome in enumerate(
        (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING, TestOutcome.SKIPPED, TestOutcome.PASSED)
    )
}


@dataclass(frozen=True)
class TurnReading:
    """One turn."""

    number: int
    """From 1 on."""
    turn: Turn
    attempt: Attempt | None
    """The attempt of an outer loop that begins here (paper A, full pipeline)."""
    thought: Markup
    action: Markup
    pieces: tuple[Piece, ...]
    """The tokens of the action; empty when they are not at hand, or too many, or hold a thought."""
    arguments: Markup
    """Of tools that take more than the text behind their name; empty otherwise."""
    observation: Markup
    is_cut: bool
    """Something was left out of the observation or the action."""
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


@dataclass(frozen=True)
class Reading:
    """A trajectory ready to read."""

    listed: Listed
    document: Document | None
    problem: str
    """Why there is no text; empty when there is."""
    task: Task | None
    task_problem: str
    turns: tuple[TurnReading, ...]
    first_turn: int
    num_turns: int
    growth_problem: str
    """Why the diff is not shown as it grew; empty when it is."""
    patch: Diff | None
    tests: tuple[TestLine, ...]
    num_tests: int
    num_tests_passed: int


def read(viewed: Viewed, reader: RunReader, listed: Listed, first_turn: int = 1) -> Reading:
    """Make a trajectory ready to read, from its turn ``first_turn`` on."""
    document, problem = _document(reader, listed)
    task, task_problem = find_task(viewed, listed.row.task_id)
    num_turns = len(document.turns) if document else 0
    first_turn = max(1, min(first_turn, num_turns))
    growth = grow(task, document) if task and document else ""
    growths = () if isinstance(growth, str) else growth
    ledger = _ledger(reader, listed)
    tests = _tests(document, task) if document else ()
    return Reading(
        listed=listed,
        document=document,
        problem=problem,
        task=task,
        task_problem=task_problem,
        turns=_turns(document, first_turn, growths, ledger, viewed.tokenizer) if document else (),
        first_turn=first_turn,
        num_turns=num_turns,
        growth_problem=growth if isinstance(growth, str) else "",
        patch=read_diff(document.final_patch, document.verdict.findings, document.final_files) if document else None,
        tests=tests[:_MAX_TESTS],
        num_tests=len(tests),
        num_tests_passed=sum(one.result.outcome is TestOutcome.PASSED for one in tests),
    )


def find_task(viewed: Viewed, task_id: str) -> tuple[Task | None, str]:
    """The task, or why there is none."""
    try:
        task = viewed.tasks.get(task_id)
    except InputError as error:
        return None, str(error)
    return task, "" if task else "The run folder does not hold this task."


def split_thought(text: str) -> tuple[str, str]:
    """(thought, action) of an answer: what is between think marks, or in front of a call that is set off by marks."""
    if match := _THOUGHT.fullmatch(text):
        return match["thought"].strip(), match["action"]
    call = _CALL.search(text)
    return (text[: call.start()].strip(), text[call.start() :]) if call else ("", text)


def _document(reader: RunReader, listed: Listed) -> tuple[Document | None, str]:
    try:
        return reader.document(listed), ""
    except InputError as error:
        return None, str(error)


def _ledger(reader: RunReader, listed: Listed) -> TokenLedger | None:
    try:
        return reader.ledger(listed)
    except InputError:
        return None  # the page of the tokens says why


def _turns(
    document: Document,
    first: int,
    growths: Sequence[Growth],
    ledger: TokenLedger | None,
    tokenizer: Tokenizer | None,
) -> tuple[TurnReading, ...]:
    shown = document.turns[first - 1 : first - 1 + MAX_TURNS]
    attempts = {attempt.first_turn + 1: attempt for attempt in document.attempts}
    room = max(_MIN_BLOCK_CHARS, min(MAX_CHARS, _PAGE_CHARS // max(1, len(shown))))
    found = []
    for number, turn in enumerate(shown, first):
        growth = growths[number - 1] if growths else None
        thought, action = split_thought(turn.action)
        found.append(
            TurnReading(
                number=number,
                turn=turn,
                attempt=attempts.get(number),
                thought=block(thought, room),
                action=block(action, room),
                pieces=() if thought else _pieces(turn, ledger, tokenizer),
                arguments=_arguments(turn, room),
                observation=block(turn.observation.strip("\n"), room),
                is_cut=max(len(turn.observation), len(turn.action)) > room,
                change=read_diff(growth.step) if growth and growth.step else None,
                whole=read_diff(growth.whole) if growth and growth.step and growth.whole else None,
            )
        )
    return tuple(found)


def _pieces(turn: Turn, ledger: TokenLedger | None, tokenizer: Tokenizer | None) -> tuple[Piece, ...]:
    start, end = turn.action_span
    if ledger is None or tokenizer is None or not 0 <= start < end <= min(len(ledger), start + _MAX_SHADED_TOKENS):
        return ()
    return tuple(stretch(ledger, tokenizer, start, end - start))


def _arguments(turn: Turn, room: int) -> Markup:
    if set(turn.arguments) <= {"argument"}:
        return Markup("")
    try:
        return block(json.dumps(turn.arguments, indent=2, ensure_ascii=False), room)
    except RecursionError:
        return Markup("nested too deeply to show")


def _tests(document: Document, task: Task | None) -> tuple[TestLine, ...]:
    """Tests of the verdict, those that did not pass first."""
    to_fix = frozenset(task.fail_to_pass) if task else frozenset()
    to_keep = frozenset(task.pass_to_pass) if task else frozenset()
    visible = frozenset(task.visible_tests) if task else frozenset()
    lines = [
        TestLine(
            name=name,
            result=result,
            role="must be fixed" if name in to_fix else "must keep passing" if name in to_keep else "",
            is_visible=name in visible,
        )
        for name, result in document.verdict.tests.items()
    ]
    return tuple(sorted(lines, key=lambda line: (_OUTCOME_ORDER[line.result.outcome], line.name)))
