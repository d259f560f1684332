"""Differences of the testbed from its start, with everything a patch needs, and listings of folders.

Reads two views of the testbed and the copy-on-write layers between them, makes :class:`Difference` and entry records.
Guarantees: only regular files are opened, links are read and never followed; bytes held are bounded whatever the code
inside made; names are any bytes the kernel allows. No untrusted process runs meanwhile.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .files import MAX_PATH_BYTES, SKIPPED_FOLDERS, TooLargeError, open_regular, open_up, resolve

_SKIPPED = SKIPPED_FOLDERS | {".git"}
FILE_BYTES = 4 << 20
"""Bound on the content of one file in a difference."""
TOTAL_BYTES = 64 << 20
"""Bound on the content of all differences together."""
MAX_ENTRIES = 200_000
_CHUNK_BYTES = 1 << 20
_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
_OTHER = "other"
_ABSENT = ""


class Side(NamedTuple):
    """One path in one view."""

    kind: str
    """``file``, ``link``, ``folder``, ``other``, or empty when there is nothing."""
    mode: int = 0
    num_bytes: int = 0
    content: Optional[bytes] = None
    """Bytes of a file, target of a link; None when omitted."""


class Difference(NamedTuple):
    """A path that differs from its start."""

    path: str
    before: Side
    after: Side


def _look(path: str) -> Side:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Side(_ABSENT)
    return Side(_KINDS.get(stat.S_IFMT(status.st_mode), _OTHER), stat.S_IMODE(status.st_mode), status.st_size)


def _is_same_file(before: str, after: str) -> bool:
    try:
        with open(open_regular(before), "rb") as old, open(open_regular(after), "rb") as new:
            while True:
                chunk = old.read(_CHUNK_BYTES)
                if chunk != new.read(_CHUNK_BYTES):
                    return False
                if not chunk:
                    return True
    except PermissionError:
        return False


def _names(root: str, folder: str) -> List[str]:
    path = os.path.join(root, folder)
    if os.path.islink(path):
        return []
    open_up(path)
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


class Differences:
    """A walk over two views of the testbed."""

    def __init__(self, before: str, after: str, layers: Sequence[str]) -> None:
        """``layers``: copy-on-write layers between the views; other paths are unchanged (no layers: compare all)."""
        self._before = before
        self._after = after
        self._layers = layers
        self._room = TOTAL_BYTES
        self.differences: List[Difference] = []

    def walk(self) -> None:
        """Compare everything, without recursion, because code inside decides the depth.

        Raises:
            TooLargeError: more than `MAX_ENTRIES` paths differ.
        """
        pending = [("", True)]
        while pending:
            folder, is_pruned = pending.pop()
            names = set(_names(self._before, folder)) | set(_names(self._after, folder))
            if is_pruned and self._layers:
                names &= {name for layer in self._layers for name in _names(layer, folder)} | self._gone(folder)
            for name in names - _SKIPPED:
                path = os.path.join(folder, name)
                before, after = self._sides(path)
                if "folder" in (before.kind, after.kind):
                    pending.append((path, is_pruned and before.kind == after.kind))
                self._compare(path, before, after)
        self.differences.sort()

    def _sides(self, path: str) -> Tuple[Side, Side]:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            return Side(_ABSENT), Side(_OTHER)
        return _look(os.path.join(self._before, path)), _look(os.path.join(self._after, path))

    def _gone(self, folder: str) -> Set[str]:
        return set(_names(self._before, folder)) - set(_names(self._after, folder))

    def _compare(self, path: str, before: Side, after: Side) -> None:
        if {before.kind, after.kind} <= {"folder", _ABSENT} or self._is_same(path, before, after):
            return
        if len(self.differences) >= MAX_ENTRIES:
            raise TooLargeError(f"more than {MAX_ENTRIES} paths differ")
        sides = (self._fill(self._before, path, before), self._fill(self._after, path, after))
        self.differences.append(Difference(path, *sides))

    def _is_same(self, path: str, before: Side, after: Side) -> bool:
        if before.kind != after.kind:
            return False
        paths = (os.path.join(self._before, path), os.path.join(self._after, path))
        if before.kind == "link":
            return os.readlink(paths[0]) == os.readlink(paths[1])
        if before.kind == "file":
            is_alike = before.num_bytes == after.num_bytes and not (before.mode ^ after.mode) & stat.S_IXUSR
            return is_alike and _is_same_file(*paths)
        return True

    def _fill(self, root: str, path: str, side: Side) -> Side:
        """Add the content to ``side``, if there is room for it."""
        full = os.path.join(root, path)
        if side.kind == "link":
            content = os.fsencode(os.readlink(full))
        elif side.kind == "file" and side.num_bytes <= min(FILE_BYTES, self._room):
            try:
                with open(open_regular(full), "rb") as file:
                    content = file.read(FILE_BYTES)
            except PermissionError:
                return side
        else:
            return side
        self._room -= len(content)
        return side._replace(content=content)


def find_differences(before: str, after: str, layers: Sequence[str]) -> Tuple[Dict[str, Any], List[bytes]]:
    """Answer the operation ``diff``: ``{"paths": [[path, side, side]]}`` and the contents in that order.

    A side is ``[kind, mode, number of bytes, index of its content or None]``.

    Raises:
        TooLargeError: more than `MAX_ENTRIES` paths differ.
    """
    walker = Differences(before, after, layers)
    walker.walk()
    blobs: List[bytes] = []

    def describe(side: Side) -> List[Any]:
        index = None
        if side.content is not None:
            index = len(blobs)
            blobs.append(side.content)
        return [side.kind, side.mode, side.num_bytes, index]

    paths = [[item.path, describe(item.before), describe(item.after)] for item in walker.differences]
    return {"paths": paths}, blobs


def list_entries(root: str, path: str, is_recursive: bool) -> List[List[Any]]:
    """List the entries below ``path``: ``[path, kind, mode, number of bytes, target of a link]``, sorted by path.

    Raises:
        PermissionError: ``path`` leads out of ``root``.
        FileNotFoundError: there is no such folder.
        NotADirectoryError: it is not a folder.
        TooLargeError: there are more than `MAX_ENTRIES`.
    """
    top = os.path.realpath(root) if os.path.normpath(path) == "." else resolve(root, path)
    entries: List[List[Any]] = []
    pending = [(top, "" if os.path.normpath(path) == "." else os.path.normpath(path))]
    while pending:
        folder, shown = pending.pop()
        open_up(folder)
        for name in sorted(os.listdir(folder)):
            if len(entries) >= MAX_ENTRIES:
                raise TooLargeError(f"got more than {MAX_ENTRIES} entries below {path!r}; list a folder below it")
            full = os.path.join(folder, name)
            side = _look(full)
            target = os.readlink(full) if side.kind == "link" else ""
            is_reachable = len(os.fsencode(full)) <= MAX_PATH_BYTES
            entries.append([os.path.join(shown, name), side.kind, side.mode, side.num_bytes, target])
            if side.kind == "folder" and is_recursive and is_reachable:
                pending.append((full, os.path.join(shown, name)))
    return sorted(entries)
