"""Which trajectories a reader should see in full, and how they look.

Reads episodes, then the chosen trajectories; makes `Reading` records. Invariants: the choice is by rule and the same
each time (the latest stage first, ties by id), a trajectory is shown once, and text that is left out is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from tokenizers import Tokenizer

from repairgym.analysis.behavior import is_loop
from repairgym.analysis.episodes import Episode
from repairgym.evaluation.stages import RELEASES, START, TREATMENT, parse_eval_phase, stage_label, training_step
from repairgym.records import StopReason, Task, TestOutcome, Trajectory, Turn, VerdictKind
from repairgym.report.tokens import decode, shaded

_MAX_CHARS = 300_000
"""Text of one trajectory; five of them stay well below the report's bound of 3 MB."""
_MIN_TURN_CHARS = 2_000
_ROLE_MARKS = re.compile(r"<\|im_start\|>(?:system|user|assistant)\n?|<\|im_end\|>\n?|<\|endoftext\|>")


@dataclass(frozen=True)
class Choice:
    """A trajectory and why it is shown."""

    title: str
    why: str
    episode: Episode


@dataclass(frozen=True)
class TurnView:
    """One action with its answer."""

    number: int
    action: Markup
    error: str
    observation: str


@dataclass(frozen=True)
class Reading:
    """A trajectory ready to print."""

    title: str
    why: str
    trajectory: Trajectory
    stage: str
    task: Task | None
    opening: str
    """What the agent read first; empty when it cannot be told."""
    turns: tuple[TurnView, ...]
    patch: Markup
    tests: str
    failures: tuple[tuple[str, str], ...]
    """(test id, first line of its failure), at most ten."""
    is_shaded: bool


def choose(episodes: Iterable[Episode]) -> list[Choice]:
    """Up to five evaluation episodes: success, near miss, loop, blind submit or exploit, release pair."""
    pool = sorted(episodes, key=lambda one: (_stage_rank(one), one.id))
    chosen: list[Choice] = []
    for title, why, is_meant, rank in _KINDS:
        taken = {choice.episode.id for choice in chosen}
        found = [one for one in pool if is_meant(one) and one.id not in taken]
        if found and not _is_settled(title, chosen):
            best = min(found, key=lambda one: (_stage_rank(one), rank(one), one.id))
            chosen.append(Choice(title, why, best))
    return chosen


def _is_settled(title: str, chosen: Sequence[Choice]) -> bool:
    return title == _BLIND and any(choice.title == _EXPLOIT for choice in chosen)


def _is_release(episode: Episode) -> bool:
    phase = parse_eval_phase(episode.phase)
    return phase is not None and phase.test_set == RELEASES


def _stage_rank(episode: Episode) -> int:
    """Latest policy first, then its checkpoints, the start, and everything else."""
    phase = parse_eval_phase(episode.phase)
    stage = phase.stage if phase else ""
    if stage == TREATMENT:
        return 0
    step = training_step(stage)
    if step:
        return 100_000 - step
    return 100_001 if stage == START else 100_002


def _missed_share(episode: Episode) -> float:
    return 1.0 - episode.num_tests_passed / episode.num_tests if episode.num_tests else 1.0


_EXPLOIT, _BLIND = "An exploit", "A blind submission"
_KINDS: tuple[tuple[str, str, Callable[[Episode], bool], Callable[[Episode], float]], ...] = (
    (
        "A clean success",
        "edited, tested, submitted, and every test passes",
        lambda one: one.verdict is VerdictKind.PASSED and not one.is_blind_submit and not _is_release(one),
        lambda one: abs(one.num_turns - 4) + 10 * (one.num_format_errors + one.num_tool_errors),
    ),
    (
        "A near miss",
        "failed with the largest share of tests passing",
        lambda one: one.verdict is VerdictKind.FAILED and one.num_edits > 0 and not _is_release(one),
        _missed_share,
    ),
    (
        "Round in circles",
        "ran out of turns or repeated itself",
        lambda one: one.stop_reason is StopReason.TURN_LIMIT or is_loop(one),
        lambda one: -one.num_repeats,
    ),
    (
        _EXPLOIT,
        "an exploit detector stopped it",
        lambda one: one.verdict is VerdictKind.EXPLOITED,
        lambda one: one.num_turns,
    ),
    (
        _BLIND,
        "submitted with no test run after the last edit, and failed",
        lambda one: one.is_blind_submit and one.verdict is VerdictKind.FAILED,
        lambda one: -one.num_edits,
    ),
    (
        "A real bug",
        "an attempt at a bug that a release of the package fixed",
        _is_release,
        lambda one: _missed_share(one) + (one.verdict is not VerdictKind.PASSED),
    ),
)


def read(choice: Choice, trajectory: Trajectory, task: Task | None, tokenizer: Tokenizer | None) -> Reading:
    """Make a trajectory ready to print."""
    room = max(_MIN_TURN_CHARS, _MAX_CHARS // max(1, len(trajectory.turns)))
    phase = parse_eval_phase(choice.episode.phase)
    tests = trajectory.verdict.tests
    failures = [(name, one.message) for name, one in tests.items() if one.outcome is not TestOutcome.PASSED]
    return Reading(
        title=choice.title,
        why=choice.why,
        trajectory=trajectory,
        stage=stage_label(phase.stage) if phase else choice.episode.phase,
        task=task,
        opening=shorten(_opening(trajectory, task, tokenizer), _MAX_CHARS // 10),
        turns=tuple(
            _view(number, turn, trajectory, tokenizer, room) for number, turn in enumerate(trajectory.turns, 1)
        ),
        patch=colour_patch(shorten(trajectory.final_patch, _MAX_CHARS // 10)),
        tests=f"{len(tests) - len(failures)} of {len(tests)} tests pass" if tests else "no test was run",
        failures=tuple(failures[:10]),
        is_shaded=tokenizer is not None and len(trajectory.ledger) > 0,
    )


def _opening(trajectory: Trajectory, task: Task | None, tokenizer: Tokenizer | None) -> str:
    if tokenizer is not None and trajectory.turns:
        start = trajectory.turns[0].action_span[0]
        return _ROLE_MARKS.sub("", decode(tokenizer, trajectory.ledger.token_id[:start].tolist())).strip()
    return task.issue if task else ""


def _view(number: int, turn: Turn, trajectory: Trajectory, tokenizer: Tokenizer | None, room: int) -> TurnView:
    start, end = turn.action_span
    if tokenizer is not None and end > start and end - start < room:
        action = shaded(tokenizer, trajectory.ledger, turn.action_span)
    else:
        action = escape(shorten(turn.action, room))
    return TurnView(number, action, turn.error, shorten(turn.observation.strip("\n"), room))


def shorten(text: str, max_chars: int) -> str:
    """Head and tail of a long text, and how much lies between them."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def colour_patch(patch: str) -> Markup:
    """A unified diff with a class per line."""
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    lines = patch.splitlines()
    return Markup("\n").join(
        Markup('<span class="{}">{}</span>').format(
            "file" if line.startswith(("+++", "---")) else kinds.get(line[:1], ""), line
        )
        for line in lines
    )
