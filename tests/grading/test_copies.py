"""Layouts: names, places and plain tests of a test file; copies with other names, fewer rows, shorter bodies."""

import ast
import random

import pytest

from repairgym.grading.copies import copy_edits, cut_edits, fixture_edits, fresh_name, layout_of
from repairgym.grading.wrong_answers import FunctionText

TEXT = '''import unittest


def helper():
    return 1


def test_first_value():
    assert helper()


def test_leaves():
    if helper():
        return
    assert helper()


def test_counts():
    assert len(registry._entries) == 1


def test_counts_of_its_own():
    entries = helper()
    assert entries._count == 1
    return


def test_keeps():
    global helper


class TestCase(unittest.TestCase):
    def test_method(self):
        text = """
one
"""
        self.assertTrue(text)

    @unittest.expectedFailure
    def test_marked(self):
        pass
'''


def test_names_places_and_plain_tests():
    layout = layout_of(TEXT)
    assert "test_first_value" in layout.names
    lines = TEXT.splitlines()
    assert (layout.end, layout.places[0]) == (len(lines), len(lines))
    before = {lines[place] for place in layout.places[1:]}
    assert before == {
        *(f"def test_{name}():" for name in ("leaves", "counts", "counts_of_its_own", "keeps")),
        "class TestCase(unittest.TestCase):",
    }
    assert set(layout.plain) == {"test_first_value", "test_counts_of_its_own", "TestCase::test_method"}
    places = layout.plain["TestCase::test_method"].places
    inside = {lines[place].strip() if place < len(lines) else "" for place in places}
    assert inside == {"def test_method(self):", "", "@unittest.expectedFailure"}
    assert not layout.is_always_run


def test_nothing_stands_before_a_test_that_looks_at_lines():
    text = TEXT.replace("global helper", "traceback")
    layout, last = layout_of(text), text.splitlines().index("    traceback")
    assert min(layout.places) > last
    assert "test_first_value" in layout.plain


@pytest.mark.parametrize(
    ("decorator", "is_plain"),
    [
        ("parametrize('a', [1, 2])", True),
        ("parametrize('a', VALUES)", True),
        ("parametrize('a', [], ids=str)", True),
        ("parametrize('a', [pytest.param(1, marks=slow)])", False),
        ("slow", False),
    ],
)
def test_parametrized_tests_are_plain_where_their_rows_are_not_marked(decorator, is_plain):
    text = f"import pytest\n\n@pytest.mark.{decorator}\ndef test_a(a):\n    assert a\n"
    assert bool(layout_of(text).plain) == is_plain
    skipping = text + "\n# a test may skip\n"
    assert bool(layout_of(skipping).plain) == (decorator == "parametrize('a', [1, 2])")


def copied(text, *edits, seed=0):
    function = FunctionText.parse(text)
    changes = [part for edit in edits for part in edit(function)]
    return function.edited([*copy_edits(function, "test_new", random.Random(seed)), *changes])


@pytest.mark.parametrize(
    "body",
    [
        "for error in (KeyError, KeyboardInterrupt):\n        with raises(error):\n            f(error)",
        "os.environ['A'] = f()",
        "m.LIMIT = 3",
        "m.TABLE['a'] = 1",
        "del m.TABLE['a']",
        "m.names.append('a')",
        "i18n.activate('fr')",
    ],
)
def test_a_test_that_could_end_the_run_or_leave_something_behind_is_not_plain(body):
    assert not layout_of(f"def test_a():\n    {body}\n    assert f()\n").plain


@pytest.mark.parametrize(
    "body", ["made = m.A()\n    made.size = 3\n    made.names.append('a')", "m.address('a')", "m.check()"]
)
def test_changes_of_what_a_test_made_stay_plain(body):
    assert layout_of(f"def test_a():\n    {body}\n    assert f()\n").plain


def test_a_copy_has_its_name_and_at_most_three_rows():
    text = '@pytest.mark.parametrize("a", [1, 2, 3, 4, 5, 6])\ndef test_a(a):\n    assert a  # test_a\n'
    new = copied(text)
    assert new.endswith("def test_new(a):\n    assert a  # test_a\n")
    assert len(ast.parse(new).body[0].decorator_list[0].args[1].elts) == 3
    assert "list(VALUES)[:3]" in copied(text.replace("[1, 2, 3, 4, 5, 6]", "VALUES"))


def test_a_copy_may_end_early_but_not_before_its_first_assertion():
    text = "    def test_a(self):\n        a = 1\n        assert a\n        b = 2\n        assert b\n"
    copies = {copied(text, lambda function, n=n: cut_edits(function, 0, random.Random(n)), seed=n) for n in range(30)}
    assert {len(copy.rstrip().splitlines()) for copy in copies} == {3, 4, 5}


def test_a_fixture_that_does_not_exist_takes_the_place_of_a_variable():
    text = "    def test_a(self):\n        text = f()\n        assert text == [text]\n"
    function = FunctionText.parse(text)
    new = function.edited(fixture_edits(function, "word", text))
    assert new == "    def test_a(self, word_text):\n        assert word_text == [word_text]\n"
    assert fixture_edits(function, "word", "word_text") is None
    rows = FunctionText.parse("def test_a(row: int, other):\n    text = f(row)\n    assert text == other\n")
    new = rows.edited(fixture_edits(rows, "word", ""))
    assert new == "def test_a(word_text):\n    assert word_text == other\n"
    assert fixture_edits(FunctionText.parse("def test_a():\n    assert 1\n"), "word", "") is None


def test_fresh_names_have_the_shape_of_the_others():
    layout, taken = layout_of(TEXT), set()
    names = [fresh_name(layout, taken, random.Random(seed)) for seed in range(40)]
    assert len(set(names)) == 40
    assert not any(name in TEXT for name in names)
    assert all(name.startswith("test_") and name.isidentifier() for name in names)
    camel = layout_of("class TestA:\n    def testOneThing(self): pass\n    def testOtherWay(self): pass\n")
    assert "_" not in fresh_name(camel, set(), random.Random(0))


def test_a_text_is_read_once():
    assert layout_of(TEXT) is layout_of(TEXT)
    assert layout_of(TEXT + "\npytestmark = 1\n") is None
    assert layout_of("def f(:\n") is None
