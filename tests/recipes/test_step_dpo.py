"""Values of actions by hand: branches count for the turns that they share, whatever happened to the history."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from repairgym.ledger import LedgerBuilder, Parent
from repairgym.recipes.step_dpo import action_pairs
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind


def episode(
    name: str, actions: Sequence[list[int]], is_passed: bool, *, is_forked: bool, parent: str = ""
) -> Trajectory:
    """An episode after the opening [1, 2, 3]; where it forks, each later turn has a history of its own.

    One with a ``parent`` shares its first turn.
    """
    builder = LedgerBuilder()
    opening = builder.append_context([1, 2, 3])
    spans = []
    for number, action in enumerate(actions):
        if number and is_forked:
            builder.fork()
            builder.copy(opening)
        if number:
            builder.append_context([90 + number])
        spans.append(builder.append_action(action, [-0.5] * len(action), 0))
    ledger = builder.build()
    return Trajectory(
        id=name,
        task_id="task",
        group_id="g",
        pipeline="p",
        policy_id="m",
        sandbox_backend="s",
        turns=tuple(Turn(action="a", tool="edit", observation="", action_span=span) for span in spans),
        ledger=ledger.as_context(spans[1][0]) if parent else ledger,
        stop_reason=StopReason.SUBMITTED,
        final_files={},
        final_patch="",
        verdict=Verdict(
            kind=VerdictKind.PASSED if is_passed else VerdictKind.FAILED, reason="", tests={}, grader_version="1"
        ),
        seed=0,
        parent=Parent(parent, 1) if parent else None,
    )


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_branch_counts_for_the_turn_that_it_shares(is_forked: bool) -> None:
    """Action 10 led to 3 successes of 4, action 12 to 1 of 2: the gap of 0.25 has the sign of all leaves."""
    found = [
        episode("a", [[10, 11], [20, 21]], False, is_forked=is_forked),
        *(
            episode(f"a#{number}", [[10, 11], [30 + number, 31]], True, is_forked=is_forked, parent="a")
            for number in range(3)
        ),
        episode("c", [[12, 13], [40, 41]], False, is_forked=is_forked),
        episode("d", [[12, 13], [42, 41]], True, is_forked=is_forked),
    ]
    pairs = action_pairs(found, 0.2, 99)
    (first,) = (pair for pair in pairs if len(pair.chosen) == 5)
    assert first.chosen.token_id.tolist() == [1, 2, 3, 10, 11]
    assert first.rejected.token_id.tolist() == [1, 2, 3, 12, 13]
    assert first.chosen.weight.tolist() == [0, 0, 0, 1, 1]
    assert first.chosen.old_log_prob.tolist() == [0, 0, 0, -0.5, -0.5]
    assert not [pair for pair in action_pairs(found, 0.3, 99) if len(pair.chosen) == 5]


def test_an_action_behind_a_fork_follows_the_history_that_the_policy_saw() -> None:
    """The dropped first action is no part of it, so second actions are siblings whatever the first one was."""
    found = [
        episode("a", [[10, 11], [20]], True, is_forked=True),
        episode("b", [[12, 13], [21]], False, is_forked=True),
    ]
    pairs = action_pairs(found, 0.5, 99)
    assert [(pair.chosen.token_id.tolist(), pair.rejected.token_id.tolist()) for pair in pairs] == [
        ([1, 2, 3, 10, 11], [1, 2, 3, 12, 13]),
        ([1, 2, 3, 91, 20], [1, 2, 3, 91, 21]),
    ]
