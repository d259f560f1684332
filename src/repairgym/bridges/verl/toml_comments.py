"""What a TOML file says behind its values, so that a generated configuration can say it, too.

Reads a file line by line; makes dotted keys and comments. Invariant: a key that is not on one line with its whole value
has no comment rather than a wrong one.
"""

from __future__ import annotations

import re
from pathlib import Path

_SECTION = re.compile(r"^\s*\[([^\]]+)\]")
_KEY = re.compile(r'^\s*([A-Za-z0-9_\-]+)\s*=\s*(?:"[^"]*"|\'[^\']*\'|[^#"\']*)\s*(?:#\s*(.*\S))?\s*$')


def comments_of(file: Path) -> dict[str, str]:
    """Dotted key -> what a TOML file says behind its value; keys without a comment have an empty one."""
    found: dict[str, str] = {}
    section = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if heading := _SECTION.match(line):
            section = f"{heading[1].strip()}."
        elif key := _KEY.match(line):
            found[f"{section}{key[1]}"] = key[2] or ""
    return found
