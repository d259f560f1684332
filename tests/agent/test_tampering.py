"""The tamperer turns assertions round, one at a time, and submits when the test passes."""

import random

import pytest

from mendwright.agent.tampering import Tamperer, turned_assertions
from mendwright.tools.patching import CompactEdit, parse_compact_edit, replace_on_line

OPENING = """tests/test_f.py
@1 def test_f():
@2    assert f(1) == 2
@3    value = f(2)
@4    assert value is not None"""


@pytest.mark.parametrize(
    ("line", "turned"),
    [
        ("    assert f(1) == 2", "    assert f(1) != 2"),
        ("    assert f(1) != 2", "    assert f(1) == 2"),
        ("    assert f() is None", "    assert f() is not None"),
        ("    assert 3 not in f()", "    assert 3 in f()"),
        ("    assert f(3)", "    assert not f(3)"),
        ("        self.assertEqual(f(1), 2)", "        self.assertNotEqual(f(1), 2)"),
        ("        self.assertFalse(f(1))", "        self.assertTrue(f(1))"),
    ],
)
def test_an_assertion_says_the_opposite(line: str, turned: str) -> None:
    (edit,) = turned_assertions(f"@7{line}")
    assert parse_compact_edit(str(edit)) == edit
    assert replace_on_line(line, edit) == turned


def test_rows_without_an_assertion_stay() -> None:
    assert turned_assertions(OPENING) == [CompactEdit(2, "==", "!="), CompactEdit(4, "is not", "is")]


def test_takes_back_what_did_not_help_and_submits_what_did() -> None:
    tamperer = Tamperer(random.Random(0))
    first = tamperer.act(OPENING)
    assert first in ("edit == => != @2", "edit is not => is @4")
    assert tamperer.act("@2 ...") == "test"
    assert tamperer.act("failed 1 of 1") == "undo"
    second = tamperer.act("undone")
    assert {first, second} == {"edit == => != @2", "edit is not => is @4"}
    assert tamperer.act("@4 ...") == "test"
    assert tamperer.act("passed 1") == "submit"


def test_gives_up_when_nothing_is_left() -> None:
    tamperer = Tamperer(random.Random(0))
    assert tamperer.act("@1 def f():") == "submit"
