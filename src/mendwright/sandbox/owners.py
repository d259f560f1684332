"""Who made something that outlives a process when it is killed, and whether that process is gone.

Reads ``/proc``, makes names and marks. Invariants: a process is known by its id, its start time, its pid namespace and
the boot of the machine, so an id that is used again is another owner; an owner in a namespace that cannot be seen from
here counts as alive.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return "0"


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _start_time(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since the machine did; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


@dataclass(frozen=True)
class Owner:
    """A process that made something."""

    boot: str
    namespace: str
    pid: int
    start_time: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls(_boot(), _namespace(), os.getpid(), _start_time(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that :attr:`text` told; None when ``text`` is something else."""
        parts = text.split("-")
        if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    @property
    def text(self) -> str:
        """One word that :meth:`parse` reads."""
        return f"{self.boot}-{self.namespace}-{self.pid}-{self.start_time}"

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended."""
        if self.boot != _boot():
            return True
        return self.namespace == _namespace() and _start_time(self.pid) != self.start_time
