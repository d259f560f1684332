"""Wrong variants of tests: what passes fails after any edit, and the edit is small."""

import builtins
import random
import textwrap

import pytest

from repairgym.grading.wrong_answers import FunctionText, wrong_edits

# Each passes as it stands, under pytest or with a test case's methods.
BODIES = [
    "assert f('one') == 'one'",
    "assert 7 == f(7)",
    "assert f(1.5) == 1.5",
    "assert f([1, 'two', {'three': 4}]) == [1, 'two', {'three': 4}]",
    "expected = 'a value'\nassert f('a value') == expected",
    "assert f(-3) == -3",
    "assert f(True)",
    "assert not f(False)",
    "assert f(None) is None",
    "assert 'a' in f('abc')",
    "assert f(1) < 2",
    "assert f(1) != 2",
    "assert Both() == Both()",
    "assert Both() != Both()",
    "self.assertEqual(Both(), Both())",
    "assert f(1) and f(2)",
    "assert (\n    f('x')\n    == 'x'\n)",
    "assert not (\n    f(0)\n    or f(False)\n)",
    "with pytest.raises(ValueError):\n    int('x')",
    "with pytest.raises(ValueError) as caught:\n    # a comment\n    int('x')\nassert 'x' in str(caught.value)",
    "with pytest.raises(TypeError):\n\n    @int\n    def g():\n        pass",
    "with open('/dev/null') as file:\n    assert file.read() == ''\n    assert f(2) == 2",
    "for value in (1, 2):\n    assert f(value) == value",
    "self.assertEqual(f('one'), 'one')",
    "self.assertTrue(f(1))",
    "self.assertIsNone(f(None))",
    "self.assertIn('a', f('abc'))",
    "self.assertRaises(ValueError, int, 'x')",
    "self.assertRaises(\n    ValueError, lambda: int('x')\n)",
    "with self.assertRaises(ValueError):\n    int('x')",
    "self.assertAlmostEqual(f(1.0), 1.0)",
    "self.check('one')",
    "if f('one') is None:\n    assert not f('one')\nelse:\n    assert f('one') == 'one'",
]


class Both:
    """Equal and unequal to all."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return True


def outcome(text):
    """The exception that the test ``test_a`` of ``text`` raises; None when it passes."""
    import unittest

    class Case(unittest.TestCase):
        def check(self, value):
            assert value

    space = {"f": lambda value: value, "pytest": pytest, "Both": Both}
    exec(textwrap.dedent(text), space)  # noqa: S102 - the text of a test is what is looked at
    try:
        space["test_a"](Case())
    except (Exception, pytest.fail.Exception) as error:
        return error
    return None


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("indent", ["", "    "])
def test_every_edit_makes_a_passing_test_fail(body, indent):
    text = textwrap.indent("def test_a(self):\n" + textwrap.indent(body, "    ") + "\n", indent)
    assert outcome(text) is None
    for seed in range(4):
        function = FunctionText.parse(text)
        edits = wrong_edits(function, ["one", "three", b"x"], text, random.Random(seed))
        assert edits
        for edit in edits:
            assert outcome(function.edited([edit])) is not None, function.edited([edit])


def test_the_same_number_in_other_words_is_no_wrong_answer():
    text = 'def test_a():\n    assert f("1") == Decimal("1.0")\n'
    for seed in range(20):
        edits = wrong_edits(FunctionText.parse(text), ["1", "1.00"], text, random.Random(seed))
        assert edits
        assert not {b"'1'", b"'1.00'"} & {edit.text for edit in edits}


def test_values_stay_near_and_formatting_stays():
    text = 'def test_a():\n    assert  f( 1 ) == "value"  # why\n'
    function = FunctionText.parse(text)
    texts = {function.edited([max(wrong_edits(function, [], text, random.Random(n)))]) for n in range(20)}
    assert len(texts) > 5
    for changed in texts:
        assert changed.startswith("def test_a():\n    assert  f( 1 ) == ")
        assert changed.endswith("  # why\n")
        assert sum(a != b for a, b in zip(text, changed, strict=True)) == 1


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    assert f(1) == 1\nexcept AssertionError:\n    pass",
        "with suppress(AssertionError):\n    assert f(1) == 1",
        "with pytest.raises(SystemExit):\n    f(1)",
        "for value in f([]):\n    assert value == 1",
        "pass",
    ],
)
def test_what_could_be_swallowed_is_not_edited(body):
    text = "def test_a():\n" + textwrap.indent(body, "    ") + "\n"
    names = "fs suppresss AssertionErrors SystemExits pytests value values"
    assert wrong_edits(FunctionText.parse(text), [], text + names, random.Random(0)) == []


def test_loose_comparisons_keep_their_values_and_own_methods_stay():
    text = "def test_a(self):\n    assert f() == mock.ANY\n"
    [edit] = wrong_edits(FunctionText.parse(text), [], text, random.Random(0))
    assert edit.text == b"not (f() == mock.ANY)"
    text = "def test_a(self):\n    self.assertEqual(1, 1)\n"
    edits = wrong_edits(FunctionText.parse(text), [], text + "def assertEqual(self, a, b): ...", random.Random(0))
    assert {edit.text for edit in edits} == {b"assureEqual"}


def test_lines_that_do_not_parse_alone_are_no_function():
    assert FunctionText.parse("def f(:\n") is None
    assert FunctionText.parse("x = 1\n") is None
    assert FunctionText.parse("") is None


def test_an_edit_of_a_variable_needs_the_assertion_that_reads_it():
    text = "def test_a():\n    expected = 'value'\n    f()\n    assert f() == expected\n"
    edits = wrong_edits(FunctionText.parse(text), [], text, random.Random(0))
    assert [edit.until for edit in edits if edit.start[0] == 2] == [4]


def test_another_exception_is_one_that_no_class_shares_with_the_expected_one():
    class Lost(ValueError, KeyError, TypeError, ZeroDivisionError):
        pass

    text = "def test_a():\n    with pytest.raises(ValueError):\n        f()\n"
    function = FunctionText.parse(text)
    changed = [
        edit.text.decode()
        for seed in range(30)
        for edit in wrong_edits(function, (), text, random.Random(seed))
        if edit.text.decode().isidentifier()
    ]
    assert len(set(changed)) > 1
    assert not any(issubclass(Lost, getattr(builtins, name)) for name in changed)
