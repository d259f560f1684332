"""What a process and all its descendants use: processor time and memory.

Reads ``/proc``; makes seconds and bytes. Invariants: memory is counted once, whoever shares it (proportional set size);
its peak is that of all processes together at one moment, as far as samples see it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_INTERVAL_S = 2.0
_KIB = 1024


class TreeUsage:
    """Measures this process and its descendants while it is open."""

    def __init__(self) -> None:
        self._start_cpu_s = _cpu_s()
        self._peak_bytes = 0
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample_on, name="memory sampler", daemon=True)

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._sampler.join()
        self.sample()

    @property
    def cpu_s(self) -> float:
        """Seconds since it was made."""
        return max(0.0, _cpu_s() - self._start_cpu_s)

    @property
    def peak_bytes(self) -> int:
        """Most memory in use at one sample."""
        return self._peak_bytes

    def _sample_on(self) -> None:
        while not self._is_over.is_set():
            self.sample()
            self._is_over.wait(_INTERVAL_S)

    def sample(self) -> None:
        """Look once more."""
        self._peak_bytes = max(self._peak_bytes, sum(memory_bytes(process.pid) for process in _process_tree()))


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
