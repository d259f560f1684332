"""Text of models and programs, made safe to show: nothing in it can act on a page, a terminal or a table.

Reads any text; makes text or escaped markup. Guarantees: removed characters leave a visible mark; line breaks and tabs
stay; markup keeps ANSI colors as classes and drops every other escape sequence; cut text is counted.
"""

import re
import unicodedata
from itertools import islice

from markupsafe import Markup, escape

MAX_CHARS = 20_000
"""Of one block of a page; the viewer has an address for the whole text."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, marks of direction (CVE-2021-42574) and width, unpaired surrogates, tags."""
_FORMULA = re.compile(r"\s*[=+\-@]")
_CONTROL_PICTURES = 0x2400
_ESCAPES = re.compile(
    r"\x1b\[(?P<sgr>[0-9;:]*)m"  # colors
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]?"  # the rest
)
_MAX_TITLES = 200
_STYLES = {1: "a-bold", 2: "a-dim", 3: "a-italic", 4: "a-under", 7: "a-swap", 9: "a-strike"}
_ENDED_BY = {22: (1, 2), 23: (3,), 24: (4,), 27: (7,), 29: (9,)}
_EXTENDED = (38, 48)


def visible(text: str) -> str:
    """Return ``text`` with a mark for each hidden character (`_mark`) and with Unix line ends."""
    return _HIDDEN.sub(lambda match: _mark(match[0]), text.replace("\r\n", "\n"))


def _mark(char: str) -> str:
    """Return a picture of a control character (ESC: ``␛``), ``�`` for a surrogate, the number of any other."""
    code = ord(char)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF):
        return "\N{REPLACEMENT CHARACTER}"
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def table_cell(text: str) -> str:
    """Return text for a CSV cell, with a quote in front of a formula."""
    text = visible(text)
    return f"'{text}" if _FORMULA.match(text) else text


def shorten(text: str, max_chars: int) -> str:
    """Return head and tail of a long text, and the number of characters between them."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def inline(text: str) -> str:
    """Return plain text without escape sequences, hidden characters marked (ids, reasons, attributes)."""
    return visible(_ESCAPES.sub("", text))


def block(text: str, max_chars: int = MAX_CHARS) -> Markup:
    """Return a text for a ``pre`` element, cut to about ``max_chars``."""
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
    """Return escaped text with hidden characters marked; the first of them carry their Unicode name as title."""
    parts, place = [], 0
    for match in islice(_HIDDEN.finditer(text), _MAX_TITLES):
        parts.append(escape(text[place : match.start()]))
        title = f"U+{ord(match[0]):04X} {unicodedata.name(match[0], 'control character')}"
        parts.append(Markup('<span class="hidden-char" title="{}">{}</span>').format(title, _mark(match[0])))
        place = match.end()
    parts.append(escape(inline(text[place:])))
    return Markup("").join(parts)


def _styled(text: str, style: dict[str, str]) -> Markup:
    if not text:
        return Markup("")
    return Markup('<span class="{}">{}</span>').format(" ".join(style.values()), plain(text)) if style else plain(text)


def _next_style(style: dict[str, str], codes: str) -> dict[str, str]:
    """Return the style after a color sequence: property -> class."""
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
            numbers = numbers[1:] if kind == [5] else numbers[3:]  # colors beyond the sixteen are ignored
        elif code in (39, 49):
            style.pop("ink" if code == 39 else "paper", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["ink"] = f"a-ink{code % 10 + (8 if code >= 90 else 0)}"
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style["paper"] = f"a-paper{code % 10 + (8 if code >= 100 else 0)}"
    return style
