"""Compact edits never match inside a token and say how to fix themselves."""

import pytest

from repairgym.agent.tools.window import open_window
from repairgym.agent.tools.window_edits import (
    CompactEdit,
    LineEdit,
    edit_at,
    find_occurrences,
    parse_compact_edit,
    parse_line_edit,
    replace_on_line,
    resolve_edit,
)


@pytest.mark.parametrize(
    ("line", "command", "expected"),
    [
        ("if a < b:", "< => <= @1", "if a <= b:"),
        ("if a <= b < c:", "< => > @1", "if a <= b > c:"),
        ("x = y[10] + 1", "1 => 2 @1", "x = y[10] + 2"),
        ("x = 1 + 1", "1 => 2 @1 #2", "x = 1 + 2"),
        ("    if not ok:", "if not => if @1", "    if ok:"),
        ("if a  not  in b:", "not in => in @1", "if a  in b:"),
        ("return minimum(min)", "min => max @1", "return minimum(max)"),
        ("a **= b ** c", "** => * @1", "a **= b * c"),
    ],
)
def test_replaces_whole_tokens(line, command, expected):
    edit = parse_compact_edit(command)
    assert edit is not None
    assert replace_on_line(line, edit) == expected


@pytest.mark.parametrize(("line", "old"), [("a <= b", "<"), ("x = 10", "1"), ("minimum", "min"), ("a", "")])
def test_does_not_match_inside_tokens(line, old):
    assert find_occurrences(line, old) == []


@pytest.mark.parametrize("command", ["", "< => <=", "< => <= @x", "< <= @1", " => <= @1"])
def test_malformed_commands_are_none(command):
    assert parse_compact_edit(command) is None


def test_missing_occurrence_is_none():
    assert replace_on_line("a + b", CompactEdit(1, "+", "-", 2)) is None


def test_written_edit_parses_to_itself():
    edit = CompactEdit(7, "not in", "in", 3)
    assert parse_compact_edit(str(edit)) == edit


def test_edit_at_counts_occurrences():
    assert edit_at("x = 1 + 1", 4, 8, "1", "2") == CompactEdit(4, "1", "2", 2)
    assert edit_at("x = 1 + 1", 4, 7, "1", "2") is None


@pytest.mark.parametrize(
    ("command", "text"), [("@3 return x", "return x"), ("@3    return x", "    return x"), ("@3", "")]
)
def test_line_edits_keep_indentation(command, text):
    assert parse_line_edit(command) == LineEdit(3, text)


TEXT = "def f(a):\n    b = a < 1\n\n    return b < 2 + a\n"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (CompactEdit(2, "<", ">"), CompactEdit(2, "<", ">")),
        (CompactEdit(1, "<", ">"), "< is on @2 @3"),
        (CompactEdit(1, "%", ">"), "% is not in the window"),
        (CompactEdit(1, "+", "-"), CompactEdit(3, "+", "-")),
        (CompactEdit(9, "+", "-"), "no line @9; the window ends at @3"),
        (CompactEdit(2, "<", ">", 2), "@2 has no < #2"),
    ],
)
def test_edits_are_resolved_or_explained(edit, expected):
    assert resolve_edit(TEXT, open_window("f.py", TEXT, 1), edit) == expected
