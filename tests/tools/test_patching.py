"""Compact edits never match inside a token and say how to mend themselves."""

import pytest

from mendwright.tools.patching import (
    CompactEdit,
    LineEdit,
    edit_at,
    explain_missing,
    find_occurrences,
    parse_compact_edit,
    parse_line_edit,
    replace_on_line,
)
from mendwright.tools.window import open_window


@pytest.mark.parametrize(
    ("line", "command", "expected"),
    [
        ("if a < b:", "@1 < => <=", "if a <= b:"),
        ("if a <= b < c:", "@1 < => >", "if a <= b > c:"),
        ("x = y[10] + 1", "@1 1 => 2", "x = y[10] + 2"),
        ("x = 1 + 1", "@1 1 => 2 #2", "x = 1 + 2"),
        ("    if not ok:", "@1 if not => if", "    if ok:"),
        ("if a  not  in b:", "@1 not in => in", "if a  in b:"),
        ("return minimum(min)", "@1 min => max", "return minimum(max)"),
        ("a **= b ** c", "@1 ** => *", "a **= b * c"),
    ],
)
def test_replaces_whole_tokens(line, command, expected):
    edit = parse_compact_edit(command)
    assert edit is not None
    assert replace_on_line(line, edit) == expected


@pytest.mark.parametrize(("line", "old"), [("a <= b", "<"), ("x = 10", "1"), ("minimum", "min"), ("a", "")])
def test_does_not_match_inside_tokens(line, old):
    assert find_occurrences(line, old) == []


@pytest.mark.parametrize("command", ["", "12 < => <=", "@x < => <=", "@1 < <=", "@1 < =>"])
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


def test_explanation_names_the_right_labels():
    text = "def f(a):\n    b = a < 1\n\n    return b < 2\n"
    window = open_window("f.py", text, 1)
    assert explain_missing(text, window, CompactEdit(1, "<", ">")) == "< is on @2 @3"
    assert explain_missing(text, window, CompactEdit(1, "%", ">")) == "% is not in the window"
