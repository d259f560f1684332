"""Files of the testbed, as trusted code reads, writes, compares and copies them.

Reads the testbed folder and its layers, makes bytes and copies of trees. Guarantees: no path leads out of the testbed,
not even through symbolic links (no untrusted process runs meanwhile, so a resolved path stays valid); only regular
files are opened and a copy follows no link; neither depth nor odd entries stop a copy. Where trusted code is the same
user as untrusted code and has no further privilege, it opens files whose mode denies that: no mode hides a file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Dict, Optional, Sequence

SKIPPED_FOLDERS = frozenset({"__pycache__", ".pytest_cache"})
MAX_PATH_BYTES = 3800
"""A longer path cannot be opened (PATH_MAX is 4096) and counts as absent."""
_CHUNK_BYTES = 1 << 20

Changes = Dict[str, Optional[bytes]]


class TooLargeError(Exception):
    """More bytes than the sandbox may hold."""


def resolve(root: str, path: str) -> str:
    """Resolve ``path`` below ``root`` to its real path.

    Raises:
        PermissionError: ``path`` leads out of ``root``.
    """
    real_root = os.path.realpath(root)
    real = os.path.realpath(os.path.join(real_root, path))
    if os.path.isabs(path) or not real.startswith(real_root + os.sep):
        raise PermissionError(f"got the path {path!r}, expected one below the repository; use a relative path")
    return real


def open_regular(path: str) -> int:
    """Open ``path`` for reading, without following a link; its owner can open it whatever the mode.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except PermissionError:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise
        mode = stat.S_IMODE(status.st_mode)
        with contextlib.suppress(OSError):
            os.chmod(path, mode | stat.S_IRUSR)
        try:
            return os.open(path, flags)
        finally:
            with contextlib.suppress(OSError):
                os.chmod(path, mode)


def open_up(folder: str) -> None:
    """Give this process access to a folder of its own whose mode denies it, where the mode can be changed."""
    if os.access(folder, os.R_OK | os.X_OK):
        return
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if stat.S_ISDIR(status.st_mode):
            os.chmod(folder, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)


def read_regular(path: str, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: there is no such regular file.
        TooLargeError: it is larger.
    """
    try:
        fd = open_regular(path)
    except OSError as error:
        raise FileNotFoundError(f"{path}: {error.strerror}") from error
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{path} is not a regular file")
        if status.st_size > limit:
            raise TooLargeError(f"{path} has {status.st_size} bytes, at most {limit} can be read")
        return file.read()


def write(root: str, path: str, content: bytes) -> None:
    """Write ``path`` below ``root``, making parent folders.

    Raises:
        PermissionError: ``path`` leads out of ``root``.
        OSError: the path cannot be written (a folder, no room).
    """
    real = resolve(root, path)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"the folder of {path} is a file") from error
    if os.path.lexists(real) and not os.path.isfile(real):
        raise IsADirectoryError(f"{path} is not a regular file")
    with open(real, "wb") as file:
        file.write(content)


class _Comparison:
    """A walk over two views of the testbed that collects the regular files that differ."""

    def __init__(self, before: str, now: str, layers: Sequence[str], limit: int) -> None:
        self._before = before
        self._now = now
        self._layers = layers
        self._room = limit
        self.changes: Changes = {}

    def walk(self) -> None:
        """Compare everything, without recursion, because code inside decides the depth.

        Where layers are known, paths that none of them names are unchanged and skipped.
        """
        pending = [("", bool(self._layers))]
        while pending:
            folder, is_pruned = pending.pop()
            before = _entries(self._before, folder)
            now = _entries(self._now, folder)
            touched = {name for layer in self._layers for name in _entries(layer, folder)} if is_pruned else None
            for name in sorted((before.keys() | now.keys()) - SKIPPED_FOLDERS):
                if touched is not None and name not in touched and name in now:
                    continue
                kinds = (before.get(name), now.get(name))
                path = os.path.join(folder, name)
                if stat.S_IFDIR in kinds:
                    pending.append((path, is_pruned and kinds == (stat.S_IFDIR, stat.S_IFDIR)))
                if stat.S_IFREG in kinds:
                    self._compare(path, *(kind == stat.S_IFREG for kind in kinds))

    def _compare(self, path: str, was_regular: bool, is_regular: bool) -> None:
        content = read_regular(os.path.join(self._now, path), self._room) if is_regular else None
        limit = self._room if content is None else len(content)
        if was_regular and content is not None and content == self._original(path, limit):
            return
        self.changes[path] = content
        self._room -= len(content or b"")

    def _original(self, path: str, limit: int) -> Optional[bytes]:
        try:
            return read_regular(os.path.join(self._before, path), limit)
        except TooLargeError:
            return None


def _entries(root: str, folder: str) -> Dict[str, int]:
    """Return the names in a folder and their file types; empty when it is not a folder."""
    path = os.path.join(root, folder)
    if len(os.fsencode(folder)) > MAX_PATH_BYTES or os.path.islink(path):
        return {}
    open_up(path)
    try:
        with os.scandir(path) as entries:
            return {entry.name: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def changed(before: str, now: str, layers: Sequence[str], limit: int) -> Changes:
    """Return the regular files that differ between the folders ``before`` and ``now`` (None: deleted).

    Args:
        before: The tree as it was at the start.
        now: The tree as it is.
        layers: Copy-on-write layers between the two; paths that none of them names are unchanged (none: compare all).
        limit: Bound on the bytes returned.

    Raises:
        TooLargeError: the changes are larger.
    """
    comparison = _Comparison(before, now, layers, limit)
    comparison.walk()
    return comparison.changes


# --- copies -----------------------------------------------------------------------------------------------------------


def copy_tree(source: str, target: str) -> int:
    """Copy files, folders and links from ``source`` into the folder ``target``; other entries are skipped.

    Returns:
        Bytes of the files.

    Raises:
        OSError: there is no room.
    """
    pending, num_bytes = [""], 0
    while pending:
        folder = pending.pop()
        open_up(os.path.join(source, folder))
        for name in os.listdir(os.path.join(source, folder)):
            path = os.path.join(folder, name)
            if len(os.fsencode(path)) > MAX_PATH_BYTES:
                continue
            status = os.lstat(os.path.join(source, path))
            _copy(os.path.join(source, path), os.path.join(target, path), status)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif stat.S_ISREG(status.st_mode):
                num_bytes += status.st_size
    return num_bytes


def _copy(source: str, target: str, status: os.stat_result) -> None:
    """Copy one entry; a folder without its content."""
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(target)
        os.chmod(target, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    elif stat.S_ISREG(status.st_mode):
        with open(open_regular(source), "rb") as reader, open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
        os.chmod(target, stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
