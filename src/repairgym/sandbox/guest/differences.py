"""Changes of the testbed since its start, with everything a patch needs, and listings of folders.

Reads two views of the testbed and the copy-on-write layers between them (none: compare everything), makes changed
files, differences and entry records. Guarantees: only regular files are opened, links are read and never followed;
bytes held are bounded whatever the code inside made; names are any bytes the kernel allows. No untrusted process runs
meanwhile.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .files import MAX_PATH_BYTES, TooLargeError, open_regular, open_up, read_regular, resolve

_CACHE_FOLDERS = frozenset({"__pycache__", ".pytest_cache"})
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


def _look(path: str) -> Side:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Side(_ABSENT)
    return Side(_KINDS.get(stat.S_IFMT(status.st_mode), _OTHER), stat.S_IMODE(status.st_mode), status.st_size)


def _names(root: str, folder: str) -> Set[str]:
    path = os.path.join(root, folder)
    if os.path.islink(path):
        return set()
    open_up(path)
    try:
        return set(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return set()


def _walk(before: str, after: str, layers: Sequence[str], skipped: FrozenSet[str]) -> Iterator[Tuple[str, Side, Side]]:
    """Yield each path that may differ, with both sides, without recursion: code inside decides the depth.

    Paths that none of the layers names are unchanged.
    """
    pending = [("", bool(layers))]
    while pending:
        folder, is_pruned = pending.pop()
        old_names, new_names = _names(before, folder), _names(after, folder)
        names = old_names | new_names
        if is_pruned:
            names &= {name for layer in layers for name in _names(layer, folder)} | (old_names - new_names)
        for name in sorted(names - skipped):
            path = os.path.join(folder, name)
            old, new = Side(_ABSENT), Side(_OTHER)
            if len(os.fsencode(path)) <= MAX_PATH_BYTES:
                old, new = _look(os.path.join(before, path)), _look(os.path.join(after, path))
            if "folder" in (old.kind, new.kind):
                pending.append((path, is_pruned and old.kind == new.kind))
            yield path, old, new


# --- changed files ----------------------------------------------------------------------------------------------------


def find_changes(before: str, after: str, layers: Sequence[str], limit: int) -> Dict[str, Optional[bytes]]:
    """Return the regular files that differ (None: deleted), without caches, in ``limit`` bytes or a `TooLargeError`."""
    changes: Dict[str, Optional[bytes]] = {}
    for path, old, new in _walk(before, after, layers, _CACHE_FOLDERS):
        if "file" not in (old.kind, new.kind):
            continue
        content = read_regular(os.path.join(after, path), limit) if new.kind == "file" else None
        if content is None or old.kind != "file" or not _has_content(os.path.join(before, path), content):
            changes[path] = content
            limit -= len(content or b"")
    return changes


def _has_content(path: str, content: bytes) -> bool:
    try:
        return read_regular(path, len(content)) == content
    except TooLargeError:
        return False


# --- differences ------------------------------------------------------------------------------------------------------


def find_differences(before: str, after: str, layers: Sequence[str]) -> Tuple[Dict[str, Any], List[bytes]]:
    """Answer the operation ``diff``: ``{"paths": [[path, side, side]]}``, sorted, and contents.

    A side is ``[kind, mode, number of bytes, index of its content or None]``. `TooLargeError` above `MAX_ENTRIES`.
    """
    paths: List[List[Any]] = []
    blobs: List[bytes] = []
    room = TOTAL_BYTES

    def describe(path: str, side: Side) -> List[Any]:
        nonlocal room
        content = _content(path, side, room)
        if content is None:
            return [*side, None]
        room -= len(content)
        blobs.append(content)
        return [*side, len(blobs) - 1]

    for path, old, new in _walk(before, after, layers, _CACHE_FOLDERS | {".git"}):
        old_path, new_path = os.path.join(before, path), os.path.join(after, path)
        if {old.kind, new.kind} <= {"folder", _ABSENT} or (
            old.kind == new.kind and _is_same(old_path, old, new_path, new)
        ):
            continue
        if len(paths) >= MAX_ENTRIES:
            raise TooLargeError(f"more than {MAX_ENTRIES} paths differ")
        paths.append([path, describe(old_path, old), describe(new_path, new)])
    return {"paths": sorted(paths)}, blobs


def _is_same(old_path: str, old: Side, new_path: str, new: Side) -> bool:
    """Compare two entries of the same kind."""
    if old.kind == "link":
        return os.readlink(old_path) == os.readlink(new_path)
    if old.kind == "file":
        is_alike = old.num_bytes == new.num_bytes and not (old.mode ^ new.mode) & stat.S_IXUSR
        return is_alike and _is_same_file(old_path, new_path)
    return True


def _is_same_file(old_path: str, new_path: str) -> bool:
    try:
        with open(open_regular(old_path), "rb") as old, open(open_regular(new_path), "rb") as new:
            while True:
                chunk = old.read(_CHUNK_BYTES)
                if chunk != new.read(_CHUNK_BYTES):
                    return False
                if not chunk:
                    return True
    except PermissionError:
        return False


def _content(path: str, side: Side, room: int) -> Optional[bytes]:
    """Return the target of a link, or the bytes of a file if there is room for them."""
    if side.kind == "link":
        return os.fsencode(os.readlink(path))
    if side.kind != "file" or side.num_bytes > min(FILE_BYTES, room):
        return None
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(FILE_BYTES)
    except PermissionError:
        return None


# --- listings ---------------------------------------------------------------------------------------------------------


def list_entries(root: str, path: str, is_recursive: bool) -> List[List[Any]]:
    """List the entries below ``path``: ``[path, kind, mode, number of bytes, target of a link]``, sorted by path.

    An ``OSError`` when it is no folder or leads out of ``root``; `TooLargeError` above `MAX_ENTRIES` entries.
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
