"""Ending every process that came from here.

Invariant: after :meth:`Reaper.end_all` this process has no descendant.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
from typing import Any, Callable, Dict, List, Optional


class Reaper(abc.ABC):
    """Ends the descendants of this process."""

    @abc.abstractmethod
    def signal_all(self, number: int) -> None:
        """Send signal ``number`` to every descendant."""

    def end_all(self, note: Callable[[Any], None] = lambda usage: None) -> Dict[int, int]:
        """Kill and reap every descendant; returns wait statuses by pid. ``note`` gets the resource usage of each."""
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
    """Ends processes of the pid namespace whose first process is the caller."""

    def signal_all(self, number: int) -> None:
        """Send signal ``number`` to every other process of the pid namespace.

        Raises:
            RuntimeError: the caller is not the first process of a pid namespace, so strangers would be hit.
        """
        if os.getpid() != 1:
            raise RuntimeError("signal_all outside of a pid namespace would end processes of the host")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)


class DescendantReaper(Reaper):
    """Ends the descendants of this process, found in ``/proc``."""

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
    """Processes below this one."""
    children: Dict[Optional[int], List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    found: List[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found
