"""The source difference of two releases as hunks that can be reverted one by one.

Reads the texts of both states; makes `Hunk` objects and reverted texts. Invariants: reverting no hunk gives the newer
state, reverting all of them gives the older one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from repairgym.diffs.lines import line_edits, split_lines

Texts = Mapping[str, str | None]
"""Relative path -> text (None: absent)."""
MAX_GAP_LINES = 2
"""Changes with at most this many equal lines between them are one hunk."""


@dataclass(frozen=True)
class Hunk:
    """One changed place.

    ``first`` and ``end`` are 0-based line numbers in the newer text, [first, end); ``old_lines`` replace them when the
    hunk is reverted. A file that only one state has is a single hunk with ``is_whole_file``.
    """

    number: int
    path: str
    first: int
    end: int
    old_lines: tuple[str, ...]
    is_whole_file: bool = False


def find_hunks(older: Texts, newer: Texts) -> list[Hunk]:
    """All hunks, by path and line."""
    hunks: list[Hunk] = []
    for path in sorted(older.keys() | newer.keys()):
        before, after = older.get(path), newer.get(path)
        if before == after:
            continue
        if before is None or after is None:
            hunks.append(Hunk(len(hunks), path, 0, 0, tuple(split_lines(before or "")), is_whole_file=True))
            continue
        for first, end, old_lines in _changes(split_lines(before), split_lines(after)):
            hunks.append(Hunk(len(hunks), path, first, end, tuple(old_lines)))
    return hunks


def _changes(before: list[str], after: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    merged: list[list[int]] = []
    for old_first, old_end, new_first, new_end in line_edits(before, after):
        if merged and new_first - merged[-1][3] <= MAX_GAP_LINES:
            merged[-1][1], merged[-1][3] = old_end, new_end
        else:
            merged.append([old_first, old_end, new_first, new_end])
    for old_first, old_end, new_first, new_end in merged:
        yield new_first, new_end, before[old_first:old_end]


def revert(newer: Texts, older: Texts, hunks: Iterable[Hunk]) -> dict[str, str | None]:
    """Texts of the files that ``hunks`` touch, with those hunks taken back."""
    by_path: dict[str, list[Hunk]] = defaultdict(list)
    for hunk in hunks:
        by_path[hunk.path].append(hunk)
    return {path: _revert_file(newer.get(path), older.get(path), found) for path, found in by_path.items()}


def _revert_file(newer: str | None, older: str | None, hunks: list[Hunk]) -> str | None:
    if any(hunk.is_whole_file for hunk in hunks) or newer is None:
        return older
    lines = split_lines(newer)
    for hunk in sorted(hunks, key=lambda h: h.first, reverse=True):
        lines[hunk.first : hunk.end] = hunk.old_lines
    return "".join(lines)


def changes_code(newer: Texts, older: Texts, hunk: Hunk) -> bool:
    """True when reverting ``hunk`` changes more than comments and docstrings, and the file still parses."""
    before, after = newer.get(hunk.path), revert(newer, older, [hunk])[hunk.path]
    if before is None or after is None:
        return True
    try:
        return _code(after) != _code(before)
    except SyntaxError:
        return False


def _code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [child for child in body if not _is_text(child)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
