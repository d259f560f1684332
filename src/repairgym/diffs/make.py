"""Unified diffs between two states of a set of files.

Reads texts; makes patch text that ``git apply`` and ``patch -p1`` take. Invariant: equal states make an empty patch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping


def unified_diff(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> str:
    """Patch from ``before`` to ``after`` (relative path -> text, None: absent), files in path order."""
    paths = sorted(before.keys() | after.keys())
    return "".join(line for path in paths for line in _file_diff(path, before.get(path), after.get(path)))


def _file_diff(path: str, old: str | None, new: str | None) -> Iterator[str]:
    if old == new:
        return
    names = f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null"
    for line in difflib.unified_diff(split_lines(old or ""), split_lines(new or ""), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line (unlike ``str.splitlines``)."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:] if lines[-1] else [line + "\n" for line in lines[:-1]]
