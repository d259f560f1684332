"""Text that a model or a program wrote, made safe to show: nothing in it can act on a page, a terminal or a table.

Reads any text; makes text. Invariants: what is taken away leaves a visible mark; line breaks and tabs stay; text
without such characters comes back unchanged. Escaping for HTML is not done here.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that change the order in which code is shown (CVE-2021-42574)."""
_UNPAIRED = re.compile("[\ud800-\udfff\ufffe\uffff]")
_FORMULA = re.compile(r"\s*[=+\-@]")
_PICTURES = 0x2400


def visible(text: str) -> str:
    """Control characters as pictures (ESC becomes ``␛``), direction marks by their number, half characters as ``�``."""
    text = _CONTROL.sub(_picture, text.replace("\r\n", "\n"))
    text = _DIRECTION.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
    return _UNPAIRED.sub("\N{REPLACEMENT CHARACTER}", text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def table_cell(text: str) -> str:
    """Text for a CSV cell: one that a spreadsheet would take for a formula gets a quote before it."""
    text = visible(text)
    return f"'{text}" if _FORMULA.match(text) else text
