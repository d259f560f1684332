"""Patches that ``git apply`` accepts, made from two states of a set of files.

`unified_diff` reads texts. `make_diff` reads `FileVersion` pairs (bytes, modes, links) that untrusted code may have
written, and makes a `Diff`: the patch and one `FileChange` per path. Guarantees of `make_diff`: time is bounded
whatever the texts are; names and lines survive byte by byte; a rename is a deletion and an addition; binary files,
files that are too large, pipes, sockets and devices are reported and left out of the patch.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

from repairgym.diffs.lines import Edit, bounded_edits, is_long, split_lines

_NUM_CONTEXT = 3
_NUM_BINARY_BYTES = 8000
"""Like git: a file is binary when it has a NUL byte in its first 8000."""
_PLAIN = re.compile(rb"[\x20\x21\x23-\x5b\x5d-\x7e]*")
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_QUOTED = {byte: bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte for byte in range(256)} | _ESCAPES
_EMPTY = "e69de29"
"""git's name for no content."""
_DELETED_EMPTY = f"deleted file mode 100644\nindex {_EMPTY}..0000000"
_NO_NEWLINE = b"\n\\ No newline at end of file\n"

ChangeKind = Literal["added", "deleted", "modified"]
Omission = Literal["", "binary", "large", "special"]
"""Reason for leaving a change out of a patch: none, not text, too many bytes, neither file nor link."""


@dataclass(frozen=True)
class FileChange:
    """One path that differs from its state at the start."""

    path: str
    kind: ChangeKind
    before_mode: int | None
    """0o100644, 0o100755 or 0o120000 (link); None when there was none."""
    after_mode: int | None
    num_bytes: int
    """Size now; 0 when deleted."""
    omission: Omission = ""
    """Reason why the patch does not carry the change; empty when it does."""


@dataclass(frozen=True)
class Diff:
    """Differences from the sandbox's start, without empty folders, byte-code, caches and ``.git``."""

    patch: bytes
    """For ``git apply``: additions, deletions, modes, links; a rename is a deletion and an addition."""
    changes: tuple[FileChange, ...] = ()
    """Sorted by path; also those that the patch does not carry."""

    @property
    def is_complete(self) -> bool:
        """True when the patch carries every change."""
        return not any(change.omission for change in self.changes)

    @property
    def text(self) -> str:
        """The patch as text; bytes that are not UTF-8 become surrogate escapes."""
        return self.patch.decode("utf-8", "surrogateescape")


def unified_diff(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> str:
    """Make the patch from ``before`` to ``after`` (relative path -> text, None: absent), files in path order.

    Equal states make an empty patch.
    """
    paths = sorted(before.keys() | after.keys())
    return "".join(line for path in paths for line in _text_diff(path, before.get(path), after.get(path)))


def _text_diff(path: str, old: str | None, new: str | None) -> Iterator[str]:
    if old == new:
        return
    if not old and not new:
        yield _empty_file(path, is_added=old is None)
        return
    names = f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null"
    before, after = split_lines(old or ""), split_lines(new or "")
    if is_long(before, after):
        texts = [(text or "").encode("utf-8", "surrogatepass") for text in (old, new)]
        yield f"--- {names[0]}\n+++ {names[1]}\n"
        yield b"".join(text_hunks(*texts)).decode("utf-8", "surrogatepass")
        return
    for line in difflib.unified_diff(before, after, *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _empty_file(path: str, *, is_added: bool) -> str:
    """Return the part of a file without lines that comes or goes: hunks cannot say it, headers of git can.

    The blank line ends the headers, so that a part without any can follow.
    """
    change = f"new file mode 100644\nindex 0000000..{_EMPTY}" if is_added else _DELETED_EMPTY
    return f"diff --git a/{path} b/{path}\n{change}\n\n"


# --- file versions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileVersion:
    """One side of a path that differs."""

    kind: str
    """``file``, ``link``, ``folder``, ``other``, or empty when there is nothing."""
    mode: int = 0
    num_bytes: int = 0
    content: bytes | None = None
    """None when it was too large to be sent, or has no content."""

    @property
    def git_mode(self) -> int | None:
        """Mode as git records it; None for kinds that git does not record."""
        if self.kind == "link":
            return 0o120000
        if self.kind == "file":
            return 0o100755 if self.mode & 0o100 else 0o100644
        return None


def make_diff(versions: Sequence[tuple[str, FileVersion, FileVersion]]) -> Diff:
    """Make the patch and the records of changes from ``(path, before, after)`` triples."""
    parts: list[bytes] = []
    changes = []
    for path, before, after in versions:
        if change := _describe(path, before, after):
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
    is_known = before.content is not None
    return is_known and (before.git_mode, before.content) == (after.git_mode, after.content)


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
    """Return the first characters of git's name for ``content``."""
    if content is None:
        return b"0000000"
    digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return digest.hexdigest()[:7].encode()


def quote_name(name: bytes) -> bytes:
    """Write ``name`` as git does in a patch: in double quotes with escapes when it has unusual bytes."""
    if _PLAIN.fullmatch(name):
        return name
    return b'"' + b"".join(_QUOTED[byte] for byte in name) + b'"'


def text_hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield the hunks that turn ``before`` into ``after``, with three lines of context."""
    old, new = BytesIO(before).readlines(), BytesIO(after).readlines()
    group: list[Edit] = []
    for edit in bounded_edits(old, new):
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
