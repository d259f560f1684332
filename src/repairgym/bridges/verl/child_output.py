"""What verl's trainer leaves behind: metrics line by line, and in its log the reason why it ended.

Reads files that are being written; makes values. Invariant: a line that is not yet whole waits for the next look.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

_TOLD_LINES = 12
_OUR_ERROR = re.compile(rb"repairgym\.errors\.\w+: (.+)")
_ANY_ERROR = re.compile(rb"\b[A-Z]\w*(?:Error|Exception): .+")


def new_lines(path: Path, position: int) -> tuple[list[bytes], int]:
    """Whole lines after ``position``, and where to go on."""
    if not path.is_file():
        return [], position
    with path.open("rb") as stream:
        stream.seek(position)
        content = stream.read()
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), position + end


def read_metrics(line: bytes) -> tuple[int, dict[str, float]]:
    """Number of updates and finite metrics of a line of verl's file log."""
    content = json.loads(line)
    values = {
        name: float(value)
        for name, value in content["data"].items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return int(content["step"]), values


def reason_of(log: Path, begin: int) -> str:
    """What the child said after ``begin``: the first error of ours, or the last of others, or its last lines."""
    with log.open("rb") as stream:
        stream.seek(begin)
        content = stream.read()
    if ours := _OUR_ERROR.search(content):
        return ours[1].decode(errors="replace").strip()
    if others := _ANY_ERROR.findall(content):
        return str(others[-1].decode(errors="replace").strip())
    lines = content.decode(errors="replace").splitlines()[-_TOLD_LINES:]
    return " | ".join(line.strip()[-200:] for line in lines if line.strip())
