"""Atomic writing: files and folders that appear whole or not at all, and lines that hide no other.

Makes files and folders next to their place and renames them. Guarantees: a killed command or a full disk
(`DiskFullError`) leaves the old content.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from repairgym.errors import InputError, disk_full_as_repairgym_error


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream to ``path``, which appears when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_full_as_repairgym_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def append_line(descriptor: int, line: str) -> None:
    """Write ``line`` at once to a file that is open to read and append; behind a torn one, on a line of its own.

    Raises:
        OSError: the disk has no room for all of it.
    """
    size, content = os.fstat(descriptor).st_size, f"{line}\n".encode()
    # A write that found no room left a part of a line, which must not swallow this one.
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    content = b"\n" + content if is_torn else content
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a place to fill, which becomes the empty or missing ``folder`` unless the block fails or fills nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name another folder, or remove it first")
    place = folder.with_name(f".{folder.name}.{os.getpid()}")
    with disk_full_as_repairgym_error(folder):
        try:
            # Of a killed process with the same id, as in a container that starts again.
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            yield place
            if any(place.iterdir()):
                place.replace(folder)
        finally:
            shutil.rmtree(place, ignore_errors=True)
