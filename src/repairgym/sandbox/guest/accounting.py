"""Resource usage of the untrusted processes of one command, as the kernel counts it.

Reads descriptors of a control group that the host opened (none when this machine has no writable control groups),
makes :class:`Usage`. Guarantees: a process enters the group by writing ``0`` to a descriptor with the opener's rights,
before it gives up its own descriptors, so nothing untrusted ever runs outside of the group; no path of a control group
is visible in a sandbox.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any, List, NamedTuple, Optional, Sequence

_MAX_TEXT_BYTES = 4096
_KIB = 1024


class Usage(NamedTuple):
    """Resource usage of a command."""

    cpu_s: float
    peak_memory_bytes: Optional[int]
    is_out_of_memory: bool


class Accounting:
    """A counter of one command at a time; without descriptors it has only the counts of ``wait4``."""

    def __init__(
        self, join: Sequence[int] = (), events: Optional[int] = None, peak: Optional[int] = None, is_reset: bool = False
    ) -> None:
        """Take the descriptors of the group.

        Args:
            join: Files into which a process writes ``0`` to enter the group.
            events: The file with the line ``oom_kill N``.
            peak: The file with the most bytes used so far.
            is_reset: True when a write to ``peak`` resets it.
        """
        self._join = list(join)
        self._events = events
        self._peak = peak
        self._is_reset = is_reset
        self._num_kills = 0
        self._cpu_s = 0.0
        self._largest_bytes = 0

    @property
    def has_memory_bound(self) -> bool:
        """True when the kernel bounds the memory of all processes together."""
        return self._events is not None

    def enter(self) -> None:
        """Move the calling process (a child, still trusted) into the group.

        Raises:
            OSError: the group is gone or full.
        """
        for fd in self._join:
            os.write(fd, b"0")

    def begin(self) -> None:
        """Start counting a command."""
        self._cpu_s = children_cpu_s()
        self._largest_bytes = 0
        self._num_kills = self._read_kills()
        if self._peak is not None and self._is_reset:
            with contextlib.suppress(OSError):
                os.write(self._peak, b"0")

    def note(self, usage: Any) -> None:
        """Add what ``wait4`` reported of one process."""
        self._largest_bytes = max(self._largest_bytes, usage.ru_maxrss * _KIB)

    def end(self) -> Usage:
        """Return the usage, after the command and all its processes have ended."""
        peak = _read_number(self._peak)
        if peak is None and self._largest_bytes:
            peak = self._largest_bytes
        return Usage(max(children_cpu_s() - self._cpu_s, 0.0), peak, self._read_kills() > self._num_kills)

    def _read_kills(self) -> int:
        for line in _read(self._events).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == b"oom_kill" and words[1].isdigit():
                return int(words[1])
        return 0


def open_accounting(description: Any, fds: List[int]) -> Accounting:
    """Open the group of a description ``{"num_join", "has_events", "has_peak", "is_reset"}`` and its descriptors."""
    rest = list(fds)
    join = [rest.pop(0) for _ in range(description.get("num_join", 0))]
    events = rest.pop(0) if description.get("has_events") else None
    peak = rest.pop(0) if description.get("has_peak") else None
    return Accounting(join, events, peak, bool(description.get("is_reset")))


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


def _read_number(fd: Optional[int]) -> Optional[int]:
    text = _read(fd).strip()
    return int(text) if text.isdigit() else None
