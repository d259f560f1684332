"""Text of agents and tools as HTML that can do nothing.

Reads any text; makes escaped markup. Invariants: ANSI colours become classes and every other escape sequence goes;
characters that are invisible or turn the reading direction are shown by name; no text is longer than its bound, and
what is left out is counted.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice

from markupsafe import Markup, escape

from repairgym.report.reading import shorten
from repairgym.report.safe_text import HIDDEN, mark_of, visible

MAX_CHARS = 20_000
"""Of one block of a page; the whole text has an address of its own."""
_ESCAPES = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"  # colours
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]?"  # the rest
)
_MAX_MARKED = 200
_STYLES = {1: "a-bold", 2: "a-dim", 3: "a-italic", 4: "a-under", 7: "a-swap", 9: "a-strike"}
_ENDED_BY = {22: (1, 2), 23: (3,), 24: (4,), 27: (7,), 29: (9,)}
_EXTENDED = (38, 48)


def inline(text: str) -> str:
    """``text`` without escape sequences, each hidden character shown, as plain text (ids, reasons, attributes)."""
    return visible(_ESCAPES.sub("", text))


def block(text: str, max_chars: int = MAX_CHARS) -> Markup:
    """A block of text, at most about ``max_chars`` long, for a ``pre`` element."""
    text = shorten(text, max_chars).replace("\r\n", "\n")
    parts: list[Markup] = []
    style: dict[str, str] = {}
    place = 0
    for match in _ESCAPES.finditer(text):
        parts.append(_styled(text[place : match.start()], style))
        if match["sgr"] is not None:
            style = _next_style(style, match["sgr"])
        place = match.end()
    parts.append(_styled(text[place:], style))
    return Markup("").join(parts)


def plain(text: str) -> Markup:
    """Escaped text whose hidden characters are shown by name; the first of them say more when pointed at."""
    parts, place = [], 0
    for match in islice(HIDDEN.finditer(text), _MAX_MARKED):
        parts.append(escape(text[place : match.start()]))
        title, mark = _title(match[0]), mark_of(match[0])
        parts.append(Markup('<span class="hidden-char" title="{}">{}</span>').format(title, mark))
        place = match.end()
    parts.append(escape(inline(text[place:])))
    return Markup("").join(parts)


def _styled(text: str, style: dict[str, str]) -> Markup:
    if not text:
        return Markup("")
    return Markup('<span class="{}">{}</span>').format(" ".join(style.values()), plain(text)) if style else plain(text)


def _next_style(style: dict[str, str], codes: str) -> dict[str, str]:
    """The style after a colour sequence: key of what it sets -> class."""
    style = dict(style)
    numbers = [int(code[:4]) if code else 0 for code in re.split("[;:]", codes)]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            style.clear()
        elif code in _STYLES:
            style[str(code)] = _STYLES[code]
        elif code in _ENDED_BY:
            for ended in _ENDED_BY[code]:
                style.pop(str(ended), None)
        elif code in _EXTENDED:
            kind, numbers = numbers[:1], numbers[1:]
            numbers = numbers[1:] if kind == [5] else numbers[3:]  # colours beyond the sixteen are left as they are
        elif code in (39, 49):
            style.pop("ink" if code == 39 else "paper", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["ink"] = f"a-ink{code % 10 + (8 if code >= 90 else 0)}"
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style["paper"] = f"a-paper{code % 10 + (8 if code >= 100 else 0)}"
    return style


def _title(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, 'control character')}"
