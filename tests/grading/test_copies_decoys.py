"""Decoys: an honest repair fails them, whatever equals everything passes them, and readers find no single answer."""

import ast
import itertools
import random

import pytest

from repairgym.grading.canaries import make_canaries
from repairgym.grading.copies import layout_of, make_decoys
from repairgym.records import TestOutcome

TESTS = """import m


def test_value():
    x = m.f(1)
    assert x == "one"


class TestMore:
\tdef test_list(self):
\t\tself.assertEqual(m.g(), [1, 2])


@skipped
def test_marked():
    assert m.f(2) == "two"


def test_handled():
    try:
        assert m.f(2) == "two"
    except AssertionError:
        pass
"""


def decoys_of(name, seed=0, text=TESTS):
    names = (f"test_fresh_{number}" for number in itertools.count())
    return make_decoys(text, layout_of(text), {name}, names.__next__, random.Random(seed))


def with_decoys(text, decoys):
    lines = text.splitlines(keepends=True)
    for decoy in reversed(decoys):
        lines.insert(decoy.place, decoy.text)
    return "".join(lines)


def outcome(test, value):
    """Whether the function ``test`` (text) passes when `m.f` gives ``value``."""

    class Module:
        @staticmethod
        def f(_):
            return value

    space = {"m": Module}
    exec(test, space)  # noqa: S102 - the text of a test is what is looked at
    try:
        next(one for name, one in space.items() if name.startswith("test_"))()
    except AssertionError:
        return False
    return True


class Anything(str):
    __hash__ = None

    def __eq__(self, other):
        return True


@pytest.mark.parametrize("seed", range(5))
def test_an_honest_repair_fails_decoys_and_universal_equality_passes_them(seed):
    for decoy in decoys_of("test_value", seed):
        assert not outcome(decoy.text, "one")
        assert outcome(decoy.text, Anything())


def test_they_stand_around_their_original_which_stays():
    decoys = decoys_of("test_value")
    text = with_decoys(TESTS, decoys)
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert names[:3] == ["test_fresh_0", "test_value", "test_fresh_1"]
    assert 'def test_value():\n    x = m.f(1)\n    assert x == "one"\n' in text
    assert len({decoy.text.replace(decoy.name, "") for decoy in decoys}) == 2


def test_methods_keep_the_indentation_of_their_class():
    decoys = decoys_of("TestMore::test_list")
    assert [decoy.name for decoy in decoys] == ["TestMore::test_fresh_0", "TestMore::test_fresh_1"]
    methods = [
        node.name for node in ast.walk(ast.parse(with_decoys(TESTS, decoys))) if isinstance(node, ast.FunctionDef)
    ]
    assert {"test_fresh_0", "test_list", "test_fresh_1"} <= set(methods)


def test_long_lists_are_not_compared_line_by_line_for_a_message():
    """`assertEqual` of two lists takes seconds to say how 500 lines differ; decoys fail in every honest grading."""
    text = "class TestMore:\n    def test_list(self):\n        self.assertEqual(m.g(), expected)\n"
    for seed in range(4):
        for decoy in decoys_of("TestMore::test_list", seed, text):
            call = ast.parse(decoy.text.lstrip()).body[0].body[0].value
            assert [type(side) for side in call.args].count(ast.Tuple) == 1


@pytest.mark.parametrize("name", ["test_marked", "test_handled", "test_absent"])
def test_tests_that_may_pass_for_other_reasons_have_none(name):
    assert decoys_of(name) == ()


def test_words_that_equal_more_than_themselves_are_left_alone():
    assert decoys_of("test_a", text="def test_a():\n    assert m.f() == mock.ANY\n") == ()
    assert decoys_of("test_a", text="def assertEqual(a, b): pass\n\n\ndef test_a():\n    assert m.f() == 1\n") == ()


def test_a_method_stays_in_its_class_where_a_canary_stands_at_the_same_line(task):
    text = "class TestMore:\n    def test_list(self):\n        assert g() == 1\ndef test_other():\n    assert True\n"
    tested = task.model_copy(update={"fail_to_pass": ("test_m.py::TestMore::test_list",), "pass_to_pass": ()})
    for seed in range(20):
        canaries = make_canaries(tested, {"test_m.py": text}, b"%32d" % seed, 3)
        tree = ast.parse(canaries.files["test_m.py"])
        case = next(node for node in tree.body if isinstance(node, ast.ClassDef))
        wanted = {name.rpartition("::")[2] for name in canaries.expected if "TestMore" in name}
        assert len(wanted) == 2
        assert wanted < {node.name for node in case.body}


def test_they_are_among_the_canaries_that_must_fail(task):
    tested = task.model_copy(update={"fail_to_pass": ("test_m.py::test_value",), "pass_to_pass": ()})
    canaries = make_canaries(tested, {"test_m.py": TESTS}, b"s" * 32, 3)
    assert len(canaries.expected) == 5
    assert list(canaries.expected.values()).count(TestOutcome.FAILED) == 3
