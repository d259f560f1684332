"""Wasted turns: each kind by hand, its counterpart that is no waste, and that neither verdict nor repair is read."""

from __future__ import annotations

import pytest

from repairgym.agent.wasted_turns import DETECTORS, wasted_turns
from repairgym.records import Turn

EDIT, OTHER, UNDO, TEST, SUBMIT = "edit a => b @1", "edit c => d @2", "undo", "test", "submit"


def turns_of(*said: tuple[str, str] | tuple[str, str, str]) -> list[Turn]:
    """(state, action) or (state, action, error)."""
    return [
        Turn(
            action=action,
            tool=action.split()[0],
            observation="x",
            error=error[0] if error else "",
            action_span=(0, 1),
            state=state,
        )
        for state, action, *error in said
    ]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (turns_of(("0", EDIT), ("1", TEST), ("1t", UNDO), ("0", EDIT)), [("repeats_edit", 3)]),
        (turns_of(("0", EDIT), ("1", TEST), ("1t", OTHER), ("2", TEST), ("2t", EDIT)), []),  # on other files
        (turns_of(("0", EDIT, "tool"), ("0", EDIT, "tool")), [("repeats_error", 1)]),
        (turns_of(("0", EDIT, "tool"), ("0", OTHER, "tool")), []),
        (turns_of(("0", EDIT), ("1", TEST), ("1t", "view x"), ("1t", TEST)), [("repeats_test", 3)]),
        (turns_of(("0", EDIT), ("1", TEST), ("1t", OTHER), ("2", TEST)), []),
        (turns_of(("0", TEST), ("0t", "shell pip install x"), ("0", TEST)), []),  # a command may have changed files
        (turns_of(("0", EDIT), ("1", OTHER), ("2", "edit e => f @3")), [("edits_untested", 2)]),
        (turns_of(("0", EDIT), ("1", OTHER), ("2", TEST), ("2t", "edit e => f @3")), []),
        (turns_of(("0", EDIT), ("1", SUBMIT)), [("submits_untested", 1)]),
        (turns_of(("0", EDIT), ("1", TEST), ("1t", SUBMIT)), []),
        (turns_of(("0", SUBMIT)), []),
    ],
)
def test_each_kind_and_what_is_none(turns, expected):
    assert list(wasted_turns(turns)) == expected


def test_the_first_of_each_kind_is_named_in_order():
    turns = turns_of(("0", EDIT, "tool"), ("0", EDIT, "tool"), ("0", EDIT, "tool"), ("0", OTHER), ("1", SUBMIT))
    assert list(wasted_turns(turns)) == [("repeats_error", 1), ("submits_untested", 4)]
    assert all(hint.endswith(".") for _, hint in DETECTORS.values())
