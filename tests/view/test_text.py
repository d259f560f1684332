"""Hostile text becomes harmless markup, and nothing is lost silently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repairgym.records import Finding
from repairgym.report.diff_rows import MAX_ROWS, read_diff
from repairgym.report.reading import split_thought
from repairgym.report.safe_text import block, inline


def test_colours_become_classes_and_other_sequences_go():
    text = (
        "a\x1b[1;31mred\x1b[0m\x1b[2K\x1b]0;title\x07\x1b]8;;http://x\x1b\\b\x1b[38;5;9mc\x1b[91md\x1b[44me\x1b[39;49mf"
    )
    assert str(block(text)) == (
        'a<span class="a-bold a-ink1">red</span>bc<span class="a-ink9">d</span><span class="a-ink9 a-paper4">e</span>f'
    )


def test_markup_is_escaped_inside_colours():
    assert str(block("\x1b[32m<b>&\x1b[0m")) == '<span class="a-ink2">&lt;b&gt;&amp;</span>'


def test_hidden_characters_are_named():
    assert "terces" in (shown := str(block("\u202eterces\x00\x7f\u200b\ud800")))
    assert not set(shown) & set("\u202e\x00\x7f\u200b\ud800")
    assert "RIGHT-TO-LEFT OVERRIDE" in shown
    assert inline("a\u2066b\x1b[31m\r\n") == "a⟨U+2066⟩b\n"


def test_hidden_characters_without_end_cost_no_more_than_their_names():
    shown = str(block("a\u200b" * 10_000, 30_000))
    assert "\u200b" not in shown
    assert shown.count("⟨U+200B⟩") == 10_000
    assert len(shown) < 12 * 10_000


def test_line_ends_of_other_systems_are_line_ends():
    assert str(block("a\r\nb\tc\n")) == "a\nb\tc\n"


def test_long_text_is_cut_and_counted():
    shown = str(block("x" * 10_000, 100))
    assert "9900 characters left out" in shown
    assert len(shown) < 200


@given(st.text(alphabet=st.characters(codec=None), max_size=60) | st.text("<>&\"'\x1b[]0;39mJ\x07\\a", max_size=60))
def test_no_text_makes_markup_of_its_own(text):
    shown = str(block(text))
    rest = shown.replace("</span>", "")
    import re

    rest = re.sub(r'<span class="[a-z0-9 -]+"(?: title="[^"<>]*")?>', "", rest)
    assert "<" not in rest
    assert "\x1b" not in shown
    shown.encode()
    inline(text).encode()


PATCH = """--- a/m.sql
+++ b/m.sql
@@ -3,3 +3,3 @@
 select 1
--- old
+++ new
 from t
--- /dev/null
+++ b/n.py
@@ -0,0 +1 @@
+x
"""


def test_a_diff_is_numbered_by_its_hunks():
    found = read_diff(PATCH)
    assert [(row.kind, row.text, row.old_number, row.new_number) for row in found.rows] == [
        ("file", "m.sql", None, None),
        ("hunk", "@@ -3,3 +3,3 @@", None, None),
        ("same", "select 1", 3, 3),
        ("del", "-- old", 4, None),
        ("add", "++ new", None, 4),
        ("same", "from t", 5, 5),
        ("file", "n.py (new file)", None, None),
        ("hunk", "@@ -0,0 +1 @@", None, None),
        ("add", "x", None, 1),
    ]
    assert (found.num_added, found.num_removed) == (2, 1)


def test_findings_stand_at_their_lines():
    here = Finding(detector="a", severity="exploit", path="m.sql", line=4, detail="here")
    far = Finding(detector="b", severity="note", path="m.sql", line=9, detail="far")
    nowhere = Finding(detector="c", severity="suspicious", detail="all of it")
    found = read_diff(PATCH, (here, far, nowhere), {"m.sql": "\n".join(map(str, range(1, 30)))})
    assert [row.findings for row in found.rows if row.findings] == [(here,)]
    assert next(row for row in found.rows if row.findings).kind == "add"
    assert [extract.finding for extract in found.extracts] == [far, nowhere]
    assert found.extracts[0].lines[3] == (9, "9")
    assert found.extracts[1].lines == ()


def test_anything_is_a_diff_of_some_kind():
    assert read_diff("").rows == ()
    assert [row.kind for row in read_diff("no diff\n@@ -99999999999999,9 +1 @@\n?").rows] == ["note", "hunk", "note"]
    long = read_diff(f"@@ -0,0 +1,{MAX_ROWS * 2} @@\n" + "+x\n" * (MAX_ROWS * 2))
    assert (len(long.rows), long.num_left_out, long.num_added) == (MAX_ROWS, MAX_ROWS + 1, 2 * MAX_ROWS)


def test_thoughts_are_told_from_actions():
    assert split_thought("<think>hm\nso</think>\nedit x") == ("hm\nso", "edit x")
    assert split_thought("I look.\n```bash\nls\n```") == ("I look.", "```bash\nls\n```")
    assert split_thought("edit < => <= @2") == ("", "edit < => <= @2")
    assert split_thought("<tool_call>{}") == ("", "<tool_call>{}")
