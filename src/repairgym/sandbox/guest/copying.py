"""Copies of trees that untrusted code made.

Reads files, folders and links, writes them elsewhere. Invariants: nothing but regular files is opened and no link is
followed; neither depth nor odd entries stop a copy. No untrusted process runs meanwhile.
"""

from __future__ import annotations

import os
import shutil
import stat

from .files import MAX_PATH_BYTES, open_regular, open_up

_CHUNK_BYTES = 1 << 20


def copy_tree(source: str, target: str) -> int:
    """Copy files, folders and links from ``source`` into the folder ``target``; what else there is stays behind.

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
    """Copy one entry; of a folder not what is in it."""
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(target)
        os.chmod(target, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    elif stat.S_ISREG(status.st_mode):
        with open(open_regular(source), "rb") as one, open(target, "wb") as two:
            shutil.copyfileobj(one, two, _CHUNK_BYTES)
        os.chmod(target, stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
