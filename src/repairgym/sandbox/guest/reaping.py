"""The end of processes: all descendants of this one, or all members of a control group.

Guarantees: after :meth:`Reaper.end_all` this process has no descendant; removing a group touches nothing outside of
its folder, also when the process that made it is gone.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import signal
import time
from typing import Any, Callable, Dict, List, Optional


class Reaper(abc.ABC):
    """A way to end the descendants of this process."""

    @abc.abstractmethod
    def signal_all(self, number: int) -> None:
        """Send signal ``number`` to every descendant."""

    def end_all(self, note: Callable[[Any], None] = lambda usage: None) -> Dict[int, int]:
        """Kill and reap every descendant; return wait statuses by pid. ``note`` gets the resource usage of each."""
        statuses: Dict[int, int] = {}
        while True:
            self.signal_all(signal.SIGKILL)
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return statuses
            statuses[pid] = status
            note(usage)


class NamespaceReaper(Reaper):
    """A reaper of the pid namespace whose first process is the caller."""

    def signal_all(self, number: int) -> None:
        """Send signal ``number`` to every other process of the pid namespace.

        Raises:
            RuntimeError: the caller is not the first process of a pid namespace, so other processes would be hit.
        """
        if os.getpid() != 1:
            raise RuntimeError("signal_all outside of a pid namespace would end processes of the host")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)


class DescendantReaper(Reaper):
    """A reaper of the descendants that ``/proc`` lists."""

    def signal_all(self, number: int) -> None:
        """See :meth:`Reaper.signal_all`."""
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _parent(pid: str) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def descendants() -> List[int]:
    """Return all processes below this one."""
    children: Dict[Optional[int], List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    below_us: List[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        below_us += below
        pending += below
    return below_us


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


def kill_group(folder: str) -> None:
    """Kill every process in the group ``folder``."""
    with contextlib.suppress(OSError):
        with open(f"{folder}/cgroup.kill", "w") as file:
            file.write("1")
        return
    for pid in group_processes(folder):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def remove_group(folder: str, wait_s: float = _WAIT_S) -> bool:
    """Kill all processes in ``folder`` and the groups below it, and remove them; False when a process does not end."""
    try:
        children = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        children = []
    for child in children:
        remove_group(child, wait_s)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            os.rmdir(folder)
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
        kill_group(folder)
        time.sleep(_POLL_S)
