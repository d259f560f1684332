"""Edits as data: what leads from one text to another, and back from its recipe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.tasks.mutation.operators import apply
from repairgym.tasks.mutation.text_edits import edits_between, is_text_recipe, read_text_edits, text_recipe

SOURCE = "def f(low, high):\n    if low < high:\n        return low\n    return high\n"
LINES = st.lists(st.sampled_from(["a = 1\n", "    b(c)\n", 'd = "; "\n', "\n", "e <= f", "ü = 'é'\n"]), max_size=6)
TEXTS = st.text("ab\n\r\x0c\x85\u2028", max_size=12)
"""Characters that end a line for `str.splitlines` only, and all that end one in Python."""


@pytest.mark.parametrize(
    ("new", "recipes"),
    [
        (SOURCE.replace("<", "<="), ['2:12: failed_repair [1, "<="]']),
        (SOURCE.replace("return low", "return high"), ['3:16: failed_repair [3, "high"]']),
        (SOURCE.replace("    return high\n", ""), ['4:1: failed_repair [16, ""]']),
        (SOURCE + "x = 1\n", ['5:1: failed_repair [0, "x = 1\\n"]']),
        (
            SOURCE.replace("<", ">").replace("return high", "return 0"),
            ['2:12: failed_repair [1, ">"]', '4:12: failed_repair [4, "0"]'],
        ),
        (SOURCE, []),
    ],
)
def test_whole_tokens_are_replaced(new: str, recipes: list[str]) -> None:
    edits = edits_between(SOURCE, new, "failed_repair")
    assert [text_recipe(edit) for edit in edits] == recipes
    assert apply(SOURCE, *edits) == new


@given(LINES, LINES)
def test_edits_and_their_recipes_lead_to_the_text(old: list[str], new: list[str]) -> None:
    source, text = "".join(old), "".join(new)
    edits = edits_between(source, text, "proposed_edit")
    assert apply(source, *edits) == text
    recipe = "; ".join(map(text_recipe, edits))
    assert "\n" not in recipe
    assert read_text_edits(source, recipe) == edits
    assert is_text_recipe(recipe) == bool(edits)


@given(TEXTS, TEXTS)
def test_lines_are_those_of_the_parser(source: str, text: str) -> None:
    edits = edits_between(source, text, "failed_repair")
    assert apply(source, *edits) == text
    assert read_text_edits(source, "; ".join(map(text_recipe, edits))) == edits


@pytest.mark.parametrize("recipe", ["2:12: < -> <=", "99:1: failed_repair [1, 2]", "2:12: failed_repair [1", "x"])
def test_what_is_no_such_recipe(recipe: str) -> None:
    with pytest.raises(ValueError, match=r"no edit|Expecting"):
        read_text_edits(SOURCE, recipe)
