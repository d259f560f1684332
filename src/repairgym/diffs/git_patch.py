"""A text patch that ``git apply`` accepts, made from what differs.

Reads pairs of file versions, makes the bytes of a patch and one :class:`~repairgym.diffs.changes.FileChange` per path.
Invariants: time is bounded whatever the texts are (a pair that is too different becomes one hunk); names and lines are
bytes and come back byte by byte; a rename is a deletion and an addition; what a text patch cannot carry (binary files,
files that are too large, pipes, sockets, devices) is reported and left out.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from repairgym.diffs.changes import ChangeKind, Diff, FileChange, Omission

_NUM_CONTEXT = 3
_MAX_EDITS = 1000
_MAX_STEPS = 3_000_000
_NUM_BINARY_BYTES = 8000
"""Like git: a file is binary when it has a NUL byte in its first 8000."""
_PLAIN = re.compile(rb"[\x20\x21\x23-\x5b\x5d-\x7e]*")
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
Edit = tuple[int, int, int, int]
"""Lines ``a:b`` of the one become lines ``c:d`` of the other."""


@dataclass(frozen=True)
class FileVersion:
    """One side of a path that differs."""

    kind: str
    """``file``, ``link``, ``folder``, ``other``, or empty when there is nothing."""
    mode: int = 0
    num_bytes: int = 0
    content: bytes | None = None
    """None when it was too large to be sent, or is nothing that has content."""

    @property
    def git_mode(self) -> int | None:
        """Mode as git records it; None for what git does not record."""
        if self.kind == "link":
            return 0o120000
        if self.kind == "file":
            return 0o100755 if self.mode & 0o100 else 0o100644
        return None


def make_diff(versions: Sequence[tuple[str, FileVersion, FileVersion]]) -> Diff:
    """The patch and the changes of ``(path, before, after)`` triples."""
    parts: list[bytes] = []
    changes = []
    for path, before, after in versions:
        change = _describe(path, before, after)
        if change is None:
            continue
        changes.append(change)
        if not change.omission:
            parts.append(_file_patch(os.fsencode(path), before, after))
    return Diff(patch=b"".join(parts), changes=tuple(changes))


def _describe(path: str, before: FileVersion, after: FileVersion) -> FileChange | None:
    omission: Omission = ""
    tracked = [side for side in (before, after) if side.git_mode is not None]
    if "other" in (before.kind, after.kind):
        omission = "special"
    elif not tracked or _is_same(before, after):
        return None
    elif any(side.content is None for side in tracked):
        omission = "large"  # or, without privileges, not readable
    elif any(b"\0" in (side.content or b"")[:_NUM_BINARY_BYTES] for side in tracked if side.kind == "file"):
        omission = "binary"
    is_before, is_after = (side.kind in ("file", "link", "other") for side in (before, after))
    kind: ChangeKind = "modified" if is_before and is_after else "added" if is_after else "deleted"
    return FileChange(path, kind, before.git_mode, after.git_mode, after.num_bytes if is_after else 0, omission)


def _is_same(before: FileVersion, after: FileVersion) -> bool:
    if before.content is None:
        return False
    return (before.git_mode, before.content) == (after.git_mode, after.content)


def _file_patch(path: bytes, before: FileVersion, after: FileVersion) -> bytes:
    is_other_kind = before.git_mode and after.git_mode and before.kind != after.kind
    if is_other_kind:
        return _file_patch(path, before, FileVersion("")) + _file_patch(path, FileVersion(""), after)
    old, new = (quote_name(prefix + path) for prefix in (b"a/", b"b/"))
    lines = [b"diff --git %b %b\n" % (old, new)]
    if before.git_mode is None:
        lines.append(b"new file mode %o\n" % (after.git_mode or 0))
    elif after.git_mode is None:
        lines.append(b"deleted file mode %o\n" % before.git_mode)
    elif before.git_mode != after.git_mode:
        lines.append(b"old mode %o\nnew mode %o\n" % (before.git_mode, after.git_mode))
    if before.content != after.content:
        lines.append(_index_line(before, after))
        hunks = b"".join(text_hunks(before.content or b"", after.content or b""))
        if hunks:
            old_name = b"/dev/null" if before.git_mode is None else _header_name(old)
            new_name = b"/dev/null" if after.git_mode is None else _header_name(new)
            lines.append(b"--- %b\n+++ %b\n%b" % (old_name, new_name, hunks))
    return b"".join(lines)


def _header_name(name: bytes) -> bytes:
    # A tab ends a name with spaces, as git writes it.
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name


def _index_line(before: FileVersion, after: FileVersion) -> bytes:
    mode = b" %o" % before.git_mode if before.git_mode is not None and before.git_mode == after.git_mode else b""
    return b"index %b..%b%b\n" % (_blob_name(before.content), _blob_name(after.content), mode)


def _blob_name(content: bytes | None) -> bytes:
    """The first characters of git's name for ``content``."""
    if content is None:
        return b"0000000"
    digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return digest.hexdigest()[:7].encode()


def quote_name(name: bytes) -> bytes:
    """``name`` as git writes it in a patch: in double quotes with escapes when it has unusual bytes."""
    if _PLAIN.fullmatch(name):
        return name
    return b'"' + b"".join(_ESCAPES.get(byte) or _quote_byte(byte) for byte in name) + b'"'


def _quote_byte(byte: int) -> bytes:
    return bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def _split(text: bytes) -> list[bytes]:
    """Lines with their line feeds; the last may lack it."""
    parts = text.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def text_hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    """The hunks that turn ``before`` into ``after``, with three lines of context."""
    old, new = _split(before), _split(after)
    group: list[Edit] = []
    for edit in _edits(old, new):
        if group and edit[0] - group[-1][1] > 2 * _NUM_CONTEXT:
            yield _hunk(old, new, group)
            group = []
        group.append(edit)
    if group:
        yield _hunk(old, new, group)


def _hunk(old: list[bytes], new: list[bytes], edits: list[Edit]) -> bytes:
    first = max(edits[0][0] - _NUM_CONTEXT, 0)
    last = min(edits[-1][1] + _NUM_CONTEXT, len(old))
    first_new = edits[0][2] - (edits[0][0] - first)
    last_new = edits[-1][3] + (last - edits[-1][1])
    parts = [b"@@ -%b +%b @@\n" % (_range(first, last), _range(first_new, last_new))]
    position = first
    for start, end, start_new, end_new in edits:
        parts += [_line(b" ", line) for line in old[position:start]]
        parts += [_line(b"-", line) for line in old[start:end]]
        parts += [_line(b"+", line) for line in new[start_new:end_new]]
        position = end
    parts += [_line(b" ", line) for line in old[position:last]]
    return b"".join(parts)


def _range(start: int, end: int) -> bytes:
    if end - start == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (end > start), end - start)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + (line if line.endswith(b"\n") else line + _NO_NEWLINE)


def _edits(old: list[bytes], new: list[bytes]) -> list[Edit]:
    """Changed stretches in order; equal ends are cut off first, what remains goes through Myers' algorithm."""
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    room = shortest - head
    tail = next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)
    one, two = old[head : len(old) - tail], new[head : len(new) - tail]
    if not one and not two:
        return []
    kept = _common(one, two) if one and two else []
    edits, a, b = [], 0, 0
    for x, y in [*kept, (len(one), len(two))]:
        if x > a or y > b:
            edits.append((head + a, head + x, head + b, head + y))
        a, b = x + 1, y + 1
    return edits


def _common(one: list[bytes], two: list[bytes]) -> list[tuple[int, int]]:
    """Pairs of equal lines on a shortest edit path (Myers 1986, the greedy algorithm); empty when it is too long."""
    numbers: dict[bytes, int] = {}
    left = [numbers.setdefault(line, len(numbers)) for line in one]
    right = [numbers.setdefault(line, len(numbers)) for line in two]
    bound = min(len(left) + len(right), _MAX_EDITS)
    furthest = [-1] * (2 * bound + 3)
    furthest[bound + 1] = 0
    trace: list[list[int]] = []
    num_steps = 0
    for num_edits in range(bound + 1):
        # What this round reads: the furthest positions on the diagonals -num_edits - 1 to num_edits + 1.
        trace.append(furthest[bound - num_edits - (num_edits < bound) : bound + num_edits + 2])
        for diagonal in range(-num_edits, num_edits + 1, 2):
            x, _ = _step(furthest, bound, diagonal, num_edits)
            start = x
            while x < len(left) and x - diagonal < len(right) and left[x] == right[x - diagonal]:
                x += 1
            furthest[bound + diagonal] = x
            num_steps += x - start + 1
            if x >= len(left) and x - diagonal >= len(right):
                return _walk_back(trace, bound, len(left), len(right))
        if num_steps > _MAX_STEPS:
            break
    return []


def _step(furthest: list[int], middle: int, diagonal: int, num_edits: int) -> tuple[int, bool]:
    """Where the next path on ``diagonal`` starts, and whether it came down (an added line) or right (a deleted one)."""
    above, below = middle + diagonal + 1, middle + diagonal - 1
    is_down = diagonal == -num_edits or (diagonal != num_edits and furthest[below] < furthest[above])
    return (furthest[above], True) if is_down else (furthest[below] + 1, False)


def _walk_back(trace: list[list[int]], bound: int, x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for num_edits in range(len(trace) - 1, -1, -1):
        middle = num_edits + (num_edits < bound)
        start, is_down = _step(trace[num_edits], middle, x - y, num_edits)
        while x > start and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = (x, y - 1) if is_down else (x - 1, y)
    return pairs[::-1]
