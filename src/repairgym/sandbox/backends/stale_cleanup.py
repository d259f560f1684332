"""Owners of folders and groups that can outlive their process, and the removal of what dead owners left.

Reads ``/proc``, makes :class:`Owner` values, their text form and folders that carry one. Guarantees: nothing of a live
process is removed, nor of one that this process cannot see (another pid namespace of the same machine); a process
number that another process received later does not protect leftovers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

OWNER_FILE = "owner"


class Owner(NamedTuple):
    """One process, identified across reboots and reused process numbers."""

    boot_id: str
    """Random name that changes with each boot."""
    pid_namespace: int
    """Inode of the pid namespace in which ``pid`` counts."""
    pid: int
    start_ticks: int
    """Start of the process, in clock ticks since boot."""

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return the owner that is the calling process."""
        ticks = _start_ticks(os.getpid())
        assert ticks is not None
        return cls(_boot_id(), os.stat("/proc/self/ns/pid").st_ino, os.getpid(), ticks)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Parse the text form of an owner; None when ``text`` is something else."""
        parts = text.strip().split(":")
        if len(parts) != 4 or not all(part.isdigit() for part in parts[1:]):
            return None
        return cls(parts[0], *map(int, parts[1:]))

    def __str__(self) -> str:
        return ":".join(map(str, self))

    def is_gone(self) -> bool:
        """Return True when the process has certainly ended."""
        if self.boot_id != _boot_id():
            return True
        if self.pid_namespace != os.stat("/proc/self/ns/pid").st_ino:
            return False
        return _start_ticks(self.pid) != self.start_ticks


def make_folder(kind: str) -> Path:
    """Make a private folder that names this process as its owner."""
    folder = Path(tempfile.mkdtemp(prefix=f"repairgym-{kind}-"))
    (folder / OWNER_FILE).write_text(str(Owner.of_this_process()))
    return folder


def sweep_folders(kind: str) -> list[Path]:
    """Remove the folders of :func:`make_folder` whose owners are gone; return their paths."""
    swept = []
    for folder in Path(tempfile.gettempdir()).glob(f"repairgym-{kind}-*"):
        try:
            status = folder.lstat()
            # Other users may put anything into a temporary folder.
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            owner = Owner.parse((folder / OWNER_FILE).read_text()) if is_ours else None
        except OSError:
            continue
        if owner is not None and owner.is_gone():
            remove_tree(folder)
            swept.append(folder)
    return swept


def remove_tree(folder: Path) -> None:
    """Remove ``folder``, however deep code inside made it and whatever modes it set; ignore errors."""
    _remove_readable(folder)
    if os.path.lexists(folder):
        # Only the owner of a folder without permissions can open it, and only after a change of its mode.
        for parent, names, _ in os.walk(folder):
            for path in (os.path.join(parent, name) for name in names):
                with contextlib.suppress(OSError):
                    if not os.path.islink(path):
                        os.chmod(path, 0o700)
        _remove_readable(folder)


def _remove_readable(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of ``/proc/<pid>/stat``; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
