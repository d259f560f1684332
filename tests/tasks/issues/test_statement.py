from __future__ import annotations

import ast

import pytest

from repairgym.tasks.build.test_files import walk_functions
from repairgym.tasks.issues.scope import find_scope
from repairgym.tasks.issues.statement import Clues, state_behaviour


def tell(source: str, clues: Clues | None = None, parameters: tuple[str, ...] = ()) -> str:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return state_behaviour(function, clues or Clues(), parameters).text


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


TABLE = """
@pytest.mark.parametrize("depth", [10, 500, 1000])
def test_it(depth):
    assert measure(depth) == depth
"""
OBJECTS = """
@pytest.mark.parametrize("kind, size", [(Merge, 1), (lambda x: x, 2), pytest.param(None, 3, id="no kind")])
def test_it(kind, size):
    assert measure(kind) == size
"""


def test_a_row_is_that_of_the_whole_id_and_without_a_sure_row_nothing_is_told() -> None:
    assert tell(TABLE, parameters=("1000",)) == "With `depth = 1000`, `measure(depth)` should be `depth`."
    assert tell(TABLE, parameters=("500", "1000")).startswith("With `depth = 500`; or with `depth = 1000`, ")
    assert tell(TABLE, parameters=("other",)) == ""
    assert tell(OBJECTS, parameters=("Merge-1",)).startswith("With `kind = Merge` and `size = 1`, ")
    assert tell(OBJECTS, parameters=("<lambda>-2",)).startswith("With `kind = lambda x: x` and `size = 2`, ")
    assert tell(OBJECTS, parameters=("no kind",)).startswith("With `kind = None` and `size = 3`, ")
    assert tell(OBJECTS.replace('")])', '")], ids=str)'), parameters=("Merge",)) == ""


def test_checks_before_the_line_that_failed_hold() -> None:
    source = "def test_it():\n    assert first() == 1\n    value = second()\n    assert value == 2\n"
    assert tell(source, Clues(line=3)) == "After `value = second()`, `value` should be `2`."


FILE = """
import other
from package import measure, Unit

ROWS = [1, 2]


def check(rows, expected):
    assert measure(rows) == expected


class TestIt:
    unit = Unit("k")

    def evaluate(self, case):
        assert measure(case, self.unit) == 1

    def test_rows(self):
        assert other.size(ROWS) == 2

    def test_case(self):
        self.evaluate("a")

    def test_unknown(self):
        self.inherited("a")


def test_helper():
    check(ROWS, 3)
"""


def test_helpers_stand_in_the_statement_and_one_without_the_package_is_refused() -> None:
    module = ast.parse(FILE)
    functions = {name: node for name, node, _ in walk_functions(module)}

    def told(name: str) -> str:
        scope = find_scope(module, name, {"package"}, is_inside=False)
        return state_behaviour(functions[name], Clues(), scope=scope).text

    helper = told("test_helper")
    assert "ROWS = [1, 2]" in helper
    assert "assert measure(rows) == expected" in helper
    assert helper.endswith("`check(ROWS, 3)` should raise no exception.")
    case = told("TestIt::test_case")
    assert "unit = Unit('k')" in case
    assert "def evaluate(self, case):" in case
    assert told("TestIt::test_rows") == told("TestIt::test_unknown") == ""


def test_a_deprecation_is_told_and_a_bare_return_is_not() -> None:
    warned = "def test_it():\n    with pytest.deprecated_call():\n        measure(1)\n"
    assert tell(warned) == "`measure(1)` should warn with `DeprecationWarning`."
    assert tell("def test_it():\n    import package\n    return\n") == "`import package` should raise no exception."
