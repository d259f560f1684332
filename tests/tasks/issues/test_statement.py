from __future__ import annotations

import ast

import pytest

from repairgym.tasks.issues.statement import Clues, state_behaviour


def tell(source: str, clues: Clues | None = None, parameters: tuple[str, ...] = ()) -> str:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return state_behaviour(function, clues or Clues(), parameters)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert parse('a') == 3", "`parse('a')` should be `3`."),
        ("self.assertEqual((1, 2), pair())", "`pair()` should be `(1, 2)`."),
        ("assert not is_even(3)", "`is_even(3)` should be false."),
        ("self.assertIn('a', names())", "`'a' in names()` should be true."),
        (
            "with pytest.raises(ValueError, match='too long'):\n        parse('a' * 9)",
            "`parse('a' * 9)` should raise `ValueError` with a message that matches `'too long'`.",
        ),
        ("self.assertRaises(KeyError, find, 'x', default=1)", "`find('x', default=1)` should raise `KeyError`."),
        ("x = Things(range(9))\n    x.pop(2)\n    other = 4\n    assert list(x) == [0]",
         "After `x = Things(range(9))` and `x.pop(2)`, `list(x)` should be `[0]`."),
        ("for bad in (1, 2):\n        with raises(TypeError):\n            check(bad)",
         "For each `bad` of `(1, 2)`, `check(bad)` should raise `TypeError`."),
        ("run()", "`run()` should raise no exception."),
    ],
)  # fmt: skip
def test_sentences(body: str, expected: str) -> None:
    assert tell(f"def test_it(self):\n    {body}\n") == expected


def test_the_failure_and_what_nobody_tells_decide_which_expectation_is_told() -> None:
    source = (
        "def test_it():\n    assert size(1) == '1B'\n    assert size(1024) == '1K'\n    assert size(2, unit='m') == 'x'"
    )
    assert tell(source) == "`size(1)` should be `'1B'`."
    assert tell(source, Clues(message="AssertionError: assert '1024B' == '1K'")) == "`size(1024)` should be `'1K'`."
    assert tell(source, Clues(message="assert False", line=3)) == "`size(1024)` should be `'1K'`."
    assert tell(source, Clues(wanted=("unit",))) == "`size(2, unit='m')` should be `'x'`."


def test_more_steps_are_a_block_and_copies_count_as_steps() -> None:
    source = (
        "def test_copy():\n    import copy\n    first = Cache(3)\n    second = copy.copy(first)\n    second.clear()\n"
        "    assert first.size == 3\n"
    )
    told = "    import copy\n    first = Cache(3)\n    second = copy.copy(first)\n    second.clear()\n"
    assert tell(source) == f"After\n\n{told}\n`first.size` should be `3`."


def test_the_parameters_are_those_of_a_failing_case() -> None:
    source = (
        "@pytest.mark.parametrize(('text', 'size'), [('a', 1), pytest.param('bb', 2)])\ndef test_it(text, size):\n"
        "    assert measure(text) == size\n"
    )
    assert tell(source, parameters=("bb-2",)) == "With `text = 'bb'` and `size = 2`, `measure(text)` should be `size`."
