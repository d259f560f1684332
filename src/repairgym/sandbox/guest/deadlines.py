"""Deadlines that exclude the time spent waiting for a processor.

Reads the scheduler's counts in ``/proc/*/stat`` and ``/proc/*/task/*/schedstat``; makes the remaining seconds. On a
busy machine, tests that take 5 ms wait seconds for a processor: a deadline by the clock would call honest code slow,
and a reward would depend on other processes. Guarantees: a deadline never ends before its seconds by the clock (except
for `_LEAST_S`), nor later than `_MAX_FACTOR` times them or `MAX_EXTENSION_S` more; code cannot buy time by starving
itself, because the processor time of its processes counts, ended threads and children included (except children of a
process that ignores ``SIGCHLD``, which nobody counts); without counts of the kernel it is a deadline by the clock.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, Iterable, List, NamedTuple

_MAX_FACTOR = 30.0
MAX_EXTENSION_S = 120.0
"""Most seconds that waiting can add to a deadline."""
_NS = 1e9
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAST_S = 0.005
"""Less than this counts as 0: the count of waiting grows while it is read."""
# Bound now: code in the same process can replace the attributes of these modules later.
_monotonic, _open, _read, _close, _listdir = time.monotonic, os.open, os.read, os.close, os.listdir
_getpid, _exists = os.getpid, os.path.exists


class Scheduled(NamedTuple):
    """The scheduler's counts of some processes."""

    running_s: float
    """Time on a processor, of all together, with ended threads and children."""
    waiting_s: float
    """Time ready to run but without a processor, of the live thread that waited longest."""


def scheduled(pids: Iterable[object]) -> Scheduled:
    """Read the counts of ``pids`` (numbers, or ``"self"``) since each began."""
    running_s = 0.0
    waiting_ns = 0
    for pid in pids:
        # The sum over threads is exact but lacks ended threads; the process total is complete but counts in ticks.
        running_ns = 0
        for path in _schedstats(f"/proc/{pid}/task"):
            words = _content(path).split()
            if len(words) == 3:
                running_ns += int(words[0])
                waiting_ns = max(waiting_ns, int(words[1]))
        running_s += max(running_ns / _NS, _used_s(pid))
    return Scheduled(running_s, waiting_ns / _NS)


def _used_s(pid: object) -> float:
    """Return the processor time of a process and of the children that it has waited for."""
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
"""Counts of processes that have not started."""


class Deadline:
    """A deadline in ``timeout_s``, extended by the time that the threads behind ``count`` wait for a processor."""

    def __init__(self, timeout_s: float, count: Callable[[], Scheduled], before: Scheduled = NOTHING) -> None:
        self._count = count
        self._start = _monotonic()
        self._timeout_s = timeout_s
        self._before = before
        self._most_waited_s = 0.0
        self._end = self._start + timeout_s

    def remaining_s(self) -> float:
        """Return the remaining seconds, 0.0 when it has passed; the counts are read only when it has by the clock."""
        # The clock is read before the counts: otherwise a wait between the two would be time that no count covers.
        now_s = _monotonic()
        if self._end - now_s <= _LEAST_S:
            self._end = self._start + self._timeout_s + min(self._waited_s(), self._bound_s())
        remaining_s = self._end - now_s
        return remaining_s if remaining_s > _LEAST_S else 0.0

    @property
    def is_starved(self) -> bool:
        """True when only the bound on extensions ended it: the processes hardly ran, through no fault of their own."""
        clock_s = _monotonic() - self._start
        is_bound_reached = clock_s + _LEAST_S >= self._timeout_s + self._bound_s()
        return is_bound_reached and clock_s - self._waited_s() < self._timeout_s

    def waited_s(self) -> float:
        """Return the seconds that the longest waiting thread had no processor since the start; reads the counts."""
        return max(self._count().waiting_s - self._before.waiting_s, 0.0)

    def extend(self, seconds: float) -> None:
        """Add ``seconds``."""
        self._timeout_s += seconds
        self._end += seconds

    def _bound_s(self) -> float:
        return min((_MAX_FACTOR - 1.0) * self._timeout_s, MAX_EXTENSION_S)

    def _waited_s(self) -> float:
        now = self._count()
        # What an ended process waited is counted nowhere any more.
        self._most_waited_s = max(now.waiting_s - self._before.waiting_s, self._most_waited_s)
        if now.running_s - self._before.running_s >= self._timeout_s:
            return 0.0  # it ran long enough
        return self._most_waited_s


def deadline_of_this_process(timeout_s: float) -> Deadline:
    """Make a deadline for the current process."""
    # A test may wait for a program that it started. What an older one computed and waited for before is its own.
    older = {pid: scheduled([pid]) for pid in descendants()} if _may_have_children() else {}
    before = scheduled(["self"])

    def count() -> Scheduled:
        running_s, waiting_s = scheduled(["self"])
        left = dict(older)
        for pid in descendants():
            now, then = scheduled([pid]), left.pop(pid, NOTHING)
            running_s += max(now.running_s - then.running_s, 0.0)
            waiting_s = max(waiting_s, before.waiting_s + now.waiting_s - then.waiting_s)
        # An older one that has ended is counted with this process as a whole.
        running_s -= sum(ended.running_s for ended in left.values())
        return Scheduled(max(running_s, before.running_s), waiting_s)

    return Deadline(timeout_s, count, before)


def _may_have_children() -> bool:
    """Return False where the kernel says that there is none: that is one read, `descendants` reads all processes."""
    paths = [path.replace("schedstat", "children") for path in _schedstats("/proc/self/task")]
    return not paths or any(_content(path) or not _exists(path) for path in paths)


def descendants() -> List[int]:
    """Return all processes below this one; none where they cannot be read."""
    try:
        pids = [int(name) for name in _listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    children: Dict[bytes, List[int]] = {}
    for pid in pids:
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        children.setdefault(fields[1] if fields else b"", []).append(pid)
    below: List[int] = []
    pending = [_getpid()]
    while pending:
        nearest = children.get(b"%d" % pending.pop(), [])
        below += nearest
        pending += nearest
    return below
