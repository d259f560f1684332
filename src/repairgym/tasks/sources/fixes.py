"""Hunks and fixes: the source difference of two states, reverted hunk by hunk or fix by fix.

Reads the texts of both states. Makes `Hunk` and `Fix` objects, reverted texts, touched functions and issue texts.
Guarantees: reverting no hunk gives the newer state, reverting all of them the older one; a fix touches only files of
its own hunks, and its issue text never quotes them.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.diffs.lines import line_edits, split_lines
from repairgym.records import Location, Provenance
from repairgym.tasks.build.test_files import test_sources
from repairgym.tasks.javascript.syntax import code_of, is_javascript
from repairgym.tasks.mutation.file_functions import functions_in
from repairgym.tasks.mutation.operators import BYTE_ORDER_MARK, NOT_PARSED, FunctionSpan, is_text
from repairgym.tasks.sources.changelog import Clues

Texts = Mapping[str, str | None]
"""Relative path -> text (None: absent)."""
MAX_GAP_LINES = 2
"""Changes with at most this many equal lines between them are one hunk."""


@dataclass(frozen=True)
class Hunk:
    """One changed place.

    ``first`` and ``end`` are 0-based line numbers in the newer text, [first, end); ``old_lines`` replace them when the
    hunk is reverted. A file that only one state has is a single hunk of all its lines, with ``is_whole_file``.
    """

    number: int
    path: str
    first: int
    end: int
    old_lines: tuple[str, ...]
    is_whole_file: bool = False


def find_hunks(older: Texts, newer: Texts) -> list[Hunk]:
    """Return all hunks, by path and line."""
    hunks: list[Hunk] = []
    for path in sorted(older.keys() | newer.keys()):
        before, after = older.get(path), newer.get(path)
        if before == after:
            continue
        if before is None or after is None:
            gone, new = split_lines(before or ""), split_lines(after or "")
            hunks.append(Hunk(len(hunks), path, 0, len(new), tuple(gone), is_whole_file=True))
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


def aligned(older: Texts, newer: Texts) -> dict[str, str | None]:
    """Return ``older`` with the paths of ``newer`` where its files lay in another root (``a.py``, ``src/a.py``).

    A path changes when exactly one path of ``newer`` ends with it or is its end.
    """
    moved: dict[str, str | None] = {}
    for path, text in older.items():
        ends = [new for new in newer if new.endswith(f"/{path}") or path.endswith(f"/{new}")]
        moved[ends[0] if path not in newer and len(ends) == 1 else path] = text
    return moved


def revert(newer: Texts, older: Texts, hunks: Iterable[Hunk]) -> dict[str, str | None]:
    """Return the texts of the touched files with ``hunks`` reverted."""
    by_path: dict[str, list[Hunk]] = defaultdict(list)
    for hunk in hunks:
        by_path[hunk.path].append(hunk)
    return {path: _revert_file(newer.get(path), older.get(path), file_hunks) for path, file_hunks in by_path.items()}


def _revert_file(newer: str | None, older: str | None, hunks: list[Hunk]) -> str | None:
    if any(hunk.is_whole_file for hunk in hunks) or newer is None:
        return older
    lines = split_lines(newer)
    for hunk in sorted(hunks, key=lambda h: h.first, reverse=True):
        lines[hunk.first : hunk.end] = hunk.old_lines
    return "".join(lines)


def changes_code(newer: Texts, older: Texts, hunk: Hunk) -> bool:
    """Return True when reverting ``hunk`` changes more than comments and docstrings, and the file still parses."""
    before, after = newer.get(hunk.path), revert(newer, older, [hunk])[hunk.path]
    if before is None or after is None:
        return True
    try:
        return _code(hunk.path, after) != _code(hunk.path, before)
    except NOT_PARSED:
        return False


def _code(path: str, text: str) -> object:
    if is_javascript(path):
        return code_of(path, text)
    tree = ast.parse(text.removeprefix(BYTE_ORDER_MARK))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [child for child in body if not is_text(child)]  # type: ignore[attr-defined]
    return ast.dump(tree)


@dataclass(frozen=True)
class Fix:
    """Hunks that the same tests need."""

    hunks: tuple[Hunk, ...]
    older: Texts
    newer: Texts

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the hunks."""
        return tuple(hunk.number for hunk in self.hunks)

    @property
    def broken_files(self) -> dict[str, str | None]:
        """The touched files with the fix reverted."""
        return revert(self.newer, self.older, self.hunks)

    @property
    def gold_files(self) -> dict[str, str | None]:
        """The touched files as released."""
        return {path: self.newer.get(path) for path in self.broken_files}

    @property
    def num_lines(self) -> int:
        """Lines added and removed."""
        return sum(hunk.end - hunk.first + len(hunk.old_lines) for hunk in self.hunks)

    @property
    def new_text(self) -> str:
        """The lines that the fix added."""
        lines = {path: split_lines(text or "") for path, text in self.gold_files.items()}
        return "".join("".join(lines[hunk.path][hunk.first : hunk.end]) for hunk in self.hunks)

    def recipe(self, provenance: Provenance) -> str:
        """Describe the bug for `Provenance.recipe`."""
        numbers = ",".join(map(str, self.numbers))
        if provenance.commit:
            return f"hunks {numbers} of commit {provenance.commit[:12]} reverted"
        return f"hunks {numbers} of {provenance.base_version} -> {provenance.version} reverted"

    def touched_functions(self) -> list[tuple[str, FunctionSpan]]:
        """Return (path, function of the newer release) of each overlapped function, in order."""
        functions: dict[tuple[str, FunctionSpan], None] = {}
        for hunk in self.hunks:
            text = self.newer.get(hunk.path)
            if text is None or hunk.is_whole_file:
                continue
            last = max(hunk.end, hunk.first + 1)
            spans = _functions(hunk.path, text)
            functions.update({(hunk.path, s): None for s in spans if s.first_line <= last and hunk.first < s.last_line})
        return list(functions)

    def location(self) -> Location | None:
        """Return the first touched function that the broken tree still has."""
        broken = {path: _functions(path, text or "") for path, text in self.broken_files.items()}
        for path, span in self.touched_functions():
            for there in broken[path]:
                if there.qualified_name == span.qualified_name:
                    first, last = there.first_line, there.last_line
                    return Location(path=path, name=span.qualified_name, first_line=first, last_line=last)
        return None


def _functions(path: str, text: str) -> list[FunctionSpan]:
    """Return the functions of a file; none of one that does not parse, which a fix may touch or repair."""
    try:
        return functions_in(path, text)
    except NOT_PARSED:
        return []


def whole_fix(older: Texts, newer: Texts) -> Fix:
    """Return the whole difference of two states as one fix."""
    return Fix(tuple(find_hunks(older, newer)), older, newer)


def fix_clues(fix: Fix, tree: Path, failing: Sequence[str]) -> Clues:
    """Return clues about a fix: touched names, failing tests with their source in ``tree``, changed lines."""
    names = [span.qualified_name for _, span in fix.touched_functions()]
    old_text = "".join(line for hunk in fix.hunks for line in hunk.old_lines)
    return Clues.collect(names, failing, fix.new_text, test_sources(tree, failing), old_text)
