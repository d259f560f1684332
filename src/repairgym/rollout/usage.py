"""Processor time and memory of a process and all its descendants.

Reads ``/proc``; makes seconds and bytes. Invariants: memory is counted once, whoever shares it (proportional set size);
its peak is that of all processes together at one moment, as far as samples see it.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

_INTERVAL_S = 2.0
_KIB = 1024


class TreeUsage:
    """Measures this process and its descendants while it is open; any number may be open at once, e.g. nested."""

    def __init__(self) -> None:
        self._start_cpu_s = _cpu_s()
        self.peak_bytes = 0
        """Most memory in use at one sample."""

    def __enter__(self) -> Self:
        _SAMPLER.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _SAMPLER.remove(self)

    @property
    def cpu_s(self) -> float:
        """Seconds since it was made."""
        return max(0.0, _cpu_s() - self._start_cpu_s)

    def memory_bytes(self) -> int:
        """Memory in use now."""
        return sum(memory_bytes(process.pid) for process in _process_tree())

    def sample(self) -> None:
        """Look once more."""
        _SAMPLER.sample()


class _Sampler:
    """One thread that looks at the memory of the process tree for whoever measures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[TreeUsage] = []
        self._is_over = threading.Event()

    def add(self, usage: TreeUsage) -> None:
        with self._lock:
            self._open.append(usage)
            if len(self._open) == 1:
                self._is_over = threading.Event()
                threading.Thread(
                    target=self._sample_on, args=(self._is_over,), name="memory sampler", daemon=True
                ).start()

    def remove(self, usage: TreeUsage) -> None:
        self.sample()  # also what was short has a peak
        with self._lock:
            self._open.remove(usage)
            if not self._open:
                self._is_over.set()

    def _sample_on(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            self.sample()
            is_over.wait(_INTERVAL_S)

    def sample(self) -> None:
        with self._lock:
            measuring = list(self._open)  # who begins while it looks is left out
        num_bytes = sum(memory_bytes(process.pid) for process in _process_tree())
        for usage in measuring:
            usage.peak_bytes = max(usage.peak_bytes, num_bytes)


_SAMPLER = _Sampler()


def memory_bytes(pid: int) -> int:
    """Proportional set size of a process; its resident set where that may not be read; 0 when it is gone."""
    for file, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) * _KIB
    return 0


def _process_tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu_s() -> float:
    """CPU seconds of this process, its living descendants, and what each of them has waited for."""
    total = 0.0
    for process in _process_tree():
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
