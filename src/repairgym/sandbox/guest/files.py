"""Files of the testbed, as trusted code reads, writes and copies them.

Guarantees: no path leads out of the testbed, not even through symbolic links (no untrusted process runs meanwhile, so a
resolved path stays valid); only regular files are opened and a copy follows no link; neither depth nor odd entries stop
a copy. Where trusted code is the same user as untrusted code and has no further privilege, it opens files whose mode
denies that: no mode hides a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import Iterator, Optional

MAX_PATH_BYTES = 3800
"""A longer path cannot be opened (PATH_MAX is 4096) and counts as absent."""
_CHUNK_BYTES = 1 << 20
_CAUSED_BY_NAMES = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ)


class TooLargeError(Exception):
    """More bytes than the sandbox may hold."""


class PlacingError(Exception):
    """A file with an impossible name or text, or one where another one belongs."""


@contextlib.contextmanager
def placing(path: str) -> Iterator[None]:
    """Turn errors that the name or the text of the file at ``path`` causes into `PlacingError`."""
    try:
        yield
    except (OSError, UnicodeEncodeError) as error:
        if getattr(error, "errno", errno.EILSEQ) not in _CAUSED_BY_NAMES:
            raise
        raise PlacingError(f"no file can be made at {path[:80]!r}: {error.args[-1]}") from error


def resolve(root: str, path: str) -> str:
    """Resolve ``path`` to its real path; raise ``PermissionError`` when that is not below ``root``."""
    real_root = os.path.realpath(root)
    real = os.path.realpath(os.path.join(real_root, path))
    if os.path.isabs(path) or not real.startswith(real_root + os.sep):
        raise PermissionError(f"got the path {path!r}, expected one below the repository; use a relative path")
    return real


def open_regular(path: str) -> int:
    """Open ``path`` for reading, without following a link; its owner can open it whatever the mode."""
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
    """Read a regular file; ``FileNotFoundError`` when there is none, `TooLargeError` above ``limit`` bytes."""
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
    """Write ``path`` below ``root``, making parent folders."""
    real = resolve(root, path)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"the folder of {path} is a file") from error
    if os.path.lexists(real) and not os.path.isfile(real):
        raise IsADirectoryError(f"{path} is not a regular file")
    with open(real, "wb") as file:
        file.write(content)


def replace(root: str, path: str, text: Optional[str]) -> None:
    """Make ``path`` below ``root`` a file with ``text`` and the mode of an older one (None: remove), also for a folder.

    A file is never written into, because it may be shared with another tree; a link is replaced, not followed.
    ``PermissionError`` when ``path`` leads out of ``root``.
    """
    real_root = os.path.realpath(root)
    parent, name = os.path.split(os.path.join(real_root, path))
    parent = os.path.realpath(parent)
    is_below = parent == real_root or parent.startswith(real_root + os.sep)
    if os.path.isabs(path) or not is_below or name in ("", ".", ".."):
        raise PermissionError(f"got the path {path!r} in files, expected one below the repository, without '..'")
    target = os.path.join(parent, name)
    mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.isfile(target) else 0o644
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    elif os.path.lexists(target):
        os.unlink(target)
    if text is not None:
        os.makedirs(parent, exist_ok=True)
        with open(target, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        os.chmod(target, mode)


def copy_tree(source: str, target: str) -> int:
    """Copy files, folders and links into the folder ``target``, skip other entries; return the bytes of the files."""
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
