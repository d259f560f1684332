"""Wasted turns of an episode, and the hint that says so (after CoRT, arXiv 2506.09820).

Reads turns; makes (kind, number of the turn). CoRT repairs two habits: to work out by hand what a program could
compute, and to distrust what it has computed; here these are changes that nobody tests, and turns that do again what
was done, with texts of ours. Guarantee: what is found follows from the turns before and the turn itself, never from
the verdict or the repair.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from repairgym.agent.tools.roles import is_change, is_edit, is_test_run
from repairgym.records import Turn

_MAX_UNTESTED_EDITS = 2
_UNDO, _SUBMIT = "undo", "submit"


def _is_untested(before: Sequence[Turn], num_changes: int) -> bool:
    """Return True where at least ``num_changes`` changes stand behind the last test run."""
    count = 0
    for turn in reversed(before):
        if is_test_run(turn):
            return False
        count += is_change(turn)
        if count >= num_changes:
            return True
    return False


def _is_repeat(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True where the same action was taken in the same state."""
    return any((known.action, known.state) == (turn.action, turn.state) for known in before)


def repeats_edit(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True for a change that was made in this state before, and taken back."""
    return is_edit(turn) and turn.tool != _UNDO and _is_repeat(before, turn)


def repeats_error(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True for an action that failed in this state before."""
    return bool(turn.error) and _is_repeat(before, turn)


def repeats_test(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True for a test run of files that were tested as they are."""
    if not is_test_run(turn):
        return False
    last_test = max((at for at, known in enumerate(before) if is_test_run(known)), default=-1)
    return last_test >= 0 and not any(is_change(known) for known in before[last_test:])


def edits_untested(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True for a further change where the changes before it were not tested."""
    return is_edit(turn) and turn.tool != _UNDO and _is_untested(before, _MAX_UNTESTED_EDITS)


def submits_untested(before: Sequence[Turn], turn: Turn) -> bool:
    """Return True for a submission whose last change was not tested."""
    return turn.tool == _SUBMIT and _is_untested(before, 1)


DETECTORS: Mapping[str, tuple[Callable[[Sequence[Turn], Turn], bool], str]] = {
    "repeats_edit": (
        repeats_edit,
        "This change was made here before and taken back. Try another line or another change.",
    ),
    "repeats_error": (repeats_error, "The same action has just failed. Read its error and do something else."),
    "repeats_test": (repeats_test, "Nothing has changed since the last test run. Make a change first."),
    "edits_untested": (edits_untested, "The last changes were not tested. Run the tests."),
    "submits_untested": (submits_untested, "The last change was not tested. Run the tests before you submit."),
}
"""Kind -> whether a turn behind others is wasted so, and the hint that stands before it is made again."""


def wasted_turns(turns: Sequence[Turn]) -> Iterator[tuple[str, int]]:
    """Yield the kind and the number of each wasted turn, the first of each kind, in the order of the turns."""
    seen = set[str]()
    for number, turn in enumerate(turns):
        for kind, (is_wasted, _) in DETECTORS.items():
            if kind not in seen and is_wasted(turns[:number], turn):
                seen.add(kind)
                yield kind, number
