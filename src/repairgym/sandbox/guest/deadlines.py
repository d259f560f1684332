"""Deadlines that count the time in which something could run, not the time spent waiting for a processor.

Reads the scheduler's counts in ``/proc/*/stat`` and ``/proc/*/task/*/schedstat``; makes the seconds that are left. On a
busy machine, tests that take 5 ms wait seconds for their turn: a deadline by the clock would call honest code too slow,
and a reward would depend on what else runs. Invariants: a deadline never ends before its seconds by the clock (but for
`_LEAST_S`) and never later than `_MAX_FACTOR` times them or `MAX_EXTENSION_S` more; code cannot buy time by starving
itself, because what its processes compute counts against it, threads and children that have ended included (but for
children of a process that ignores ``SIGCHLD``, which no one counts); where the kernel keeps no counts it is a deadline
by the clock.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Iterable, NamedTuple

_MAX_FACTOR = 30.0
MAX_EXTENSION_S = 120.0
"""The most that waiting can add to a deadline."""
_NS = 1e9
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAST_S = 0.005
"""Less than this is no time left: the count of waiting runs on while it is read."""
# Bound now: recorders live beside code that can replace the attributes of these modules later.
_monotonic, _open, _read, _close, _listdir = time.monotonic, os.open, os.read, os.close, os.listdir


class Scheduled(NamedTuple):
    """What the scheduler counted for some processes."""

    running_s: float
    """On a processor, all together, with the threads and the children that have ended."""
    waiting_s: float
    """Ready to run and waiting for a processor, the thread that waited longest of those that are there."""


def scheduled(pids: Iterable[object]) -> Scheduled:
    """Counts of ``pids`` (numbers, or ``"self"``) since each began."""
    running_s = 0.0
    waiting_ns = 0
    for pid in pids:
        # The sum over threads is exact, and lacks those that have ended; the other is whole, and counts in ticks.
        running_ns = 0
        for path in _schedstats(f"/proc/{pid}/task"):
            words = _content(path).split()
            if len(words) == 3:
                running_ns += int(words[0])
                waiting_ns = max(waiting_ns, int(words[1]))
        running_s += max(running_ns / _NS, _used_s(pid))
    return Scheduled(running_s, waiting_ns / _NS)


def _used_s(pid: object) -> float:
    """Processor time of a process and of the children that it has waited for."""
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _schedstats(folder: str) -> Iterable[str]:
    try:
        return [f"{folder}/{task}/schedstat" for task in _listdir(folder)]
    except OSError:
        return []


def _content(path: str) -> bytes:
    try:
        fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return _read(fd, 1024)
    except OSError:
        return b""
    finally:
        _close(fd)


NOTHING = Scheduled(0.0, 0.0)
"""Counts of processes that are yet to begin."""


class Deadline:
    """``timeout_s`` from now, later by what the threads behind ``count`` wait for a processor until then."""

    def __init__(self, timeout_s: float, count: Callable[[], Scheduled], before: Scheduled = NOTHING) -> None:
        self._count = count
        self._start = _monotonic()
        self._timeout_s = timeout_s
        self._before = before
        self._end = self._start + timeout_s

    def remaining_s(self) -> float:
        """Seconds left, 0.0 when it has passed. The counts are read only when the clock says that it has."""
        # The clock before the counts: a wait between the two must not be in the time and missing from the counts.
        now_s = _monotonic()
        if self._end - now_s <= _LEAST_S:
            self._end = self._start + self._timeout_s + self._extension_s()
        left_s = self._end - now_s
        return left_s if left_s > _LEAST_S else 0.0

    @property
    def is_starved(self) -> bool:
        """True when it passed by its bound alone: those behind it hardly ran, and not by their own doing."""
        clock_s = _monotonic() - self._start
        is_bound_reached = clock_s + _LEAST_S >= self._timeout_s + self._bound_s()
        return is_bound_reached and clock_s - self._waited_s() < self._timeout_s

    def extend(self, seconds: float) -> None:
        """Give ``seconds`` more."""
        self._timeout_s += seconds
        self._end += seconds

    def _extension_s(self) -> float:
        return min(self._waited_s(), self._bound_s())

    def _bound_s(self) -> float:
        return min((_MAX_FACTOR - 1.0) * self._timeout_s, MAX_EXTENSION_S)

    def _waited_s(self) -> float:
        now = self._count()
        if now.running_s - self._before.running_s >= self._timeout_s:
            return 0.0  # it had its time
        return max(now.waiting_s - self._before.waiting_s, 0.0)


def deadline_of_this_process(timeout_s: float) -> Deadline:
    """A deadline of what this very process does from now on."""
    return Deadline(timeout_s, _scheduled_here, before=_scheduled_here())


def _scheduled_here() -> Scheduled:
    return scheduled(["self"])
