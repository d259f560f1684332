"""Actions lead from one text to the other, whatever the texts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.pretraining.repair_actions import play, repair_actions, shortest_edit, text_of

LINES = st.lists(
    st.sampled_from(["def f(a, b):", "    if a:", "        return b", "    a = b + 1", "    return a", "x = (1, 2)"]),
    min_size=1,
    max_size=8,
)


@given(LINES, LINES)
def test_played_actions_give_the_text(before: list[str], after: list[str]) -> None:
    actions = repair_actions(before, after)
    if before == after:
        assert actions is None
    else:
        assert actions is not None
        assert play(before, actions) == text_of(after)


@pytest.mark.parametrize(
    ("before", "after", "actions"),
    [
        (["a = f(b)"], ["a = f(b, c)"], ["edit b => b, c @1"]),
        (["a = f(b, c)"], ["a = f(b)"], ["edit b, c => b @1"]),
        (["return a"], ["return a", "    b"], ["insert @1    b"]),
        (["a", "b"], ["b"], ["delete @1"]),
        (["a"], ["x", "y", "a"], ["insert @0 x", "insert @2 y"]),
        (["if a < 1 and a < 2:"], ["if a < 1 and a <= 2:"], ["edit < => <= @1 #2"]),
        (["    return x"], ["        return x"], ["line @1        return x"]),
        (["value = other"], ["raise KeyError(name)"], ["line @1 raise KeyError(name)"]),
    ],
)
def test_short_actions_are_preferred(before: list[str], after: list[str], actions: list[str]) -> None:
    assert repair_actions(before, after) == actions


def test_a_text_that_the_language_cannot_say_has_no_actions() -> None:
    assert repair_actions(["a"], ["a", " one space"]) is None
    assert shortest_edit(1, "", "a") is None
