"""The end of processes and their resource usage: the descendants of this one, or the members of a control group.

Reads descriptors of a control group that the host opened (none where no group can be written), makes :class:`Usage`.
Guarantees: after :func:`end_all` this process has no descendant; a process enters its group by writing ``0`` to a
descriptor with the opener's rights, before it gives up its own descriptors, so nothing untrusted ever runs outside of
the group; no path of a control group is visible in a sandbox; removing a group touches nothing outside of its folder,
also when the process that made it is gone; shared memory, semaphores and queues (System V) end with the command that
made them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from . import syscalls
from .deadlines import descendants

_MAX_TEXT_BYTES = 4096
_KIB = 1024
_INITIAL_IPC = 0xEFFFFFFF
"""Inode of the IPC namespace that the kernel begins with."""
SignalAll = Callable[[int], None]
"""Function that sends a signal to every descendant of this process."""


def remove_ipc_objects() -> None:
    """Remove what ended processes left in the IPC namespace of this sandbox, where nothing else ends it.

    It is in no file system: a later command would find it, and its memory counts in no bound of the disk.
    """
    if os.stat("/proc/self/ns/ipc").st_ino == _INITIAL_IPC:
        return  # the host's own objects
    for kind in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{kind}") as file:
            numbers = [int(line.split()[1]) for line in file.readlines()[1:]]
        for number in numbers:
            with contextlib.suppress(OSError):
                syscalls.remove_ipc_object(kind, number)


def end_all(signal_all: SignalAll, note: Callable[[Any], None] = lambda usage: None) -> Dict[int, int]:
    """Kill and reap every descendant; return wait statuses by pid. ``note`` gets the resource usage of each."""
    statuses: Dict[int, int] = {}
    while True:
        signal_all(signal.SIGKILL)
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return statuses
        statuses[pid] = status
        note(usage)


def signal_namespace(number: int) -> None:
    """Send signal ``number`` to every other process of the pid namespace whose first process is the caller."""
    if os.getpid() != 1:
        raise RuntimeError("a signal to all outside of a pid namespace would end processes of the host")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def signal_descendants(number: int) -> None:
    """Send signal ``number`` to the descendants that ``/proc`` lists."""
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# --- usage ------------------------------------------------------------------------------------------------------------


class Usage(NamedTuple):
    """Resource usage of a command, as the kernel counts it."""

    cpu_s: float
    peak_memory_bytes: Optional[int]
    is_out_of_memory: bool


class Accounting:
    """A counter of one command at a time; without descriptors it has only the counts of ``wait4``."""

    def __init__(self, roles: Sequence[str] = (), fds: Sequence[int] = ()) -> None:
        """Take the descriptors of the group, each with its role.

        ``join``: a process that writes ``0`` enters the group; ``events``: has the line ``oom_kill N``; ``peak``: most
        bytes used so far; ``reset_peak``: the same, and a write resets it.
        """
        by_role = {role: fds[index] for index, role in enumerate(roles)}
        self._join = [fds[index] for index, role in enumerate(roles) if role == "join"]
        self._events = by_role.get("events")
        self._reset_peak = by_role.get("reset_peak")
        self._peak = by_role.get("peak", self._reset_peak)
        self._num_kills = 0
        self._cpu_s = 0.0
        self._largest_bytes = 0

    @property
    def has_memory_bound(self) -> bool:
        """True when the kernel bounds the memory of all processes together."""
        return self._events is not None

    def enter(self) -> None:
        """Move the calling process (a child, still trusted) into the group."""
        for fd in self._join:
            os.write(fd, b"0")

    def begin(self) -> None:
        """Start counting a command."""
        self._cpu_s = children_cpu_s()
        self._largest_bytes = 0
        self._num_kills = self._read_kills()
        if self._reset_peak is not None:
            with contextlib.suppress(OSError):
                os.write(self._reset_peak, b"0")

    def note(self, usage: Any) -> None:
        """Add what ``wait4`` reported of one process."""
        self._largest_bytes = max(self._largest_bytes, usage.ru_maxrss * _KIB)

    def end(self) -> Usage:
        """Return the usage, after the command and all its processes have ended."""
        text = _read(self._peak).strip()
        peak = int(text) if text.isdigit() else self._largest_bytes or None
        return Usage(max(children_cpu_s() - self._cpu_s, 0.0), peak, self._read_kills() > self._num_kills)

    def _read_kills(self) -> int:
        for line in _read(self._events).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == b"oom_kill" and words[1].isdigit():
                return int(words[1])
        return 0


def children_cpu_s() -> float:
    """Return the processor time of the children that this process has waited for, and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _read(fd: Optional[int]) -> bytes:
    if fd is None:
        return b""
    try:
        return os.pread(fd, _MAX_TEXT_BYTES, 0)
    except OSError:
        return b""


# --- control groups ---------------------------------------------------------------------------------------------------

_WAIT_S = 2.0
_POLL_S = 0.005


def group_processes(folder: str) -> List[int]:
    """Return the processes in the group ``folder`` itself, by their ids here."""
    try:
        with open(f"{folder}/cgroup.procs") as file:
            return [int(word) for word in file.read().split() if word != "0"]
    except OSError:
        return []


def _kill_group(folder: str) -> None:
    with contextlib.suppress(OSError):
        with open(f"{folder}/cgroup.kill", "w") as file:
            file.write("1")
        return
    for pid in group_processes(folder):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def remove_group(folder: str) -> bool:
    """Kill all processes in ``folder`` and the groups below it, and remove them; False when a process does not end."""
    try:
        children = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        children = []
    for child in children:
        remove_group(child)
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            os.rmdir(folder)
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
        _kill_group(folder)
        time.sleep(_POLL_S)
