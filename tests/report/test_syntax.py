"""Colored code keeps its text, hides nothing, and falls back to plain text."""

import re

import pytest

from repairgym.report.safe_text import plain
from repairgym.report.syntax import code_line


@pytest.mark.parametrize(
    "text",
    ["def f(x): return '<b>' + 3  # note", "  \tx = 1 ", "", "s = 'a\u202eb'", "x" * 600, '"""', "@", "\x1b[31m"],
)
@pytest.mark.parametrize("path", ["a/b.py", "c.ts", "d.unknown", "", "Makefile"])
def test_the_text_is_that_of_plain(text, path):
    strip = lambda markup: re.sub(r'<span class="y-.">([^<]*)</span>', r"\1", str(markup))  # noqa: E731
    assert strip(code_line(text, path)) == str(plain(text))


def test_words_of_the_language_have_a_color():
    line = str(code_line("return 3", "m.py"))
    assert line == '<span class="y-k">return</span> <span class="y-n">3</span>'
    assert "y-" not in str(code_line("return 3", "m.unknown"))
