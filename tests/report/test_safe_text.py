from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.report.safe_text import block, inline, shorten, table_cell, visible

HOSTILE = "\x1b[31mred\x1b[0m \u202eevil\u202c \x00 <script>alert(1)</script> \ud800 [bold]x[/bold]\r\nnext"


def test_nothing_of_a_hostile_text_can_act():
    shown = visible(HOSTILE)
    assert shown.startswith("␛[31mred␛[0m ⟨U+202E⟩evil⟨U+202C⟩ ␀ <script>")
    assert shown.endswith("� [bold]x[/bold]\nnext")
    shown.encode("utf-8")
    assert visible("plain\n\ttext é 漢") == "plain\n\ttext é 漢"
    assert visible("\x7f\x85") == "␡⟨U+0085⟩"
    assert visible("in\u200bvisible\u2028\U000e0041") == "in⟨U+200B⟩visible⟨U+2028⟩⟨U+E0041⟩"


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-2+3", "\t=cmd"])
def test_a_cell_is_no_formula(text):
    assert table_cell(text).startswith("'")


def test_shorten_counts_what_it_leaves_out():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdefghij", 4) == "ab\n… 6 characters left out …\nij"


def test_colors_become_classes_and_other_sequences_are_dropped():
    text = (
        "a\x1b[1;31mred\x1b[0m\x1b[2K\x1b]0;title\x07\x1b]8;;http://x\x1b\\b\x1b[38;5;9mc\x1b[91md\x1b[44me\x1b[39;49mf"
    )
    assert str(block(text)) == (
        'a<span class="a-bold a-ink1">red</span>bc<span class="a-ink9">d</span><span class="a-ink9 a-paper4">e</span>f'
    )


def test_markup_is_escaped_inside_colors():
    assert str(block("\x1b[32m<b>&\x1b[0m")) == '<span class="a-ink2">&lt;b&gt;&amp;</span>'


def test_hidden_characters_are_named():
    assert "terces" in (shown := str(block("\u202eterces\x00\x7f\u200b\ud800")))
    assert not set(shown) & set("\u202e\x00\x7f\u200b\ud800")
    assert "RIGHT-TO-LEFT OVERRIDE" in shown
    assert inline("a\u2066b\x1b[31m\r\n") == "a⟨U+2066⟩b\n"


def test_many_hidden_characters_keep_a_bounded_size():
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
