"""Text that a model or a program wrote, made safe to show: nothing in it can act on a page, a terminal or a table.

Reads any text; makes text. Invariants: what is taken away leaves a visible mark; line breaks and tabs stay; text
without such characters comes back unchanged. Escaping for HTML is not done here.
"""

from __future__ import annotations

import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, marks of direction (CVE-2021-42574) and width, halves of characters, tags."""
_FORMULA = re.compile(r"\s*[=+\-@]")
_PICTURES = 0x2400


def visible(text: str) -> str:
    """``text`` with each hidden character as `mark_of` shows it; line ends of other systems are line ends."""
    return HIDDEN.sub(lambda found: mark_of(found[0]), text.replace("\r\n", "\n"))


def mark_of(char: str) -> str:
    """A control character as a picture (ESC becomes ``␛``), half a character as ``�``, others by their number."""
    code = ord(char)
    if code < 0x20:
        return chr(_PICTURES + code)
    if 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF):
        return "\N{REPLACEMENT CHARACTER}"
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def table_cell(text: str) -> str:
    """Text for a CSV cell: one that a spreadsheet would take for a formula gets a quote before it."""
    text = visible(text)
    return f"'{text}" if _FORMULA.match(text) else text
