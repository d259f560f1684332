"""Pipes between the trusted process and an untrusted child, and buffers of bounded size.

Guarantees: the child has the descriptors 0 to :data:`READY_FD` and no other.
"""

from __future__ import annotations

import fcntl
import os

from . import syscalls

RECORD_FD = 3
"""Descriptor of the record pipe in the child."""
READY_FD = 4
"""Descriptor on which the child reports that it is confined; closed before untrusted code runs."""


class BoundedBuffer:
    """The first and the last bytes of a stream, and the count of all."""

    def __init__(self, limit: int) -> None:
        self._num_head = limit // 2
        self._num_tail = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        self.num_bytes += len(data)
        room = self._num_head - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._num_tail:
            del self._tail[: len(self._tail) - self._num_tail]

    @property
    def is_truncated(self) -> bool:
        """True when bytes in the middle were dropped."""
        return self.num_bytes > self._num_head + self._num_tail

    def value(self) -> bytes:
        """Return the kept bytes, with a note in place of dropped bytes."""
        if not self.is_truncated:
            return bytes(self._head + self._tail)
        num_dropped = self.num_bytes - self._num_head - self._num_tail
        note = b"\n[... %d bytes dropped ...]\n" % num_dropped
        return bytes(self._head) + note + bytes(self._tail[len(self._tail) - self._num_tail :])


class Pipes:
    """The pipes between the trusted process and the child: each a (read, write) pair."""

    def __init__(self) -> None:
        self.stdin = os.pipe()
        self.stdout = os.pipe()
        self.stderr = os.pipe()
        self.records = os.pipe()
        self.ready = os.pipe()

    def become_child(self) -> None:
        """In the child, make the pipes descriptors 0 to 4 and close all others."""
        sources = (self.stdin[0], self.stdout[1], self.stderr[1], self.records[1], self.ready[1])
        # Moved away first: a source may have one of the target numbers.
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, READY_FD + 1) for fd in sources]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=True)
        syscalls.close_range(READY_FD + 1)

    def become_parent(self) -> None:
        """In the parent, close the child's ends and make ours non-blocking."""
        for fd in (self.stdin[0], self.stdout[1], self.stderr[1], self.records[1], self.ready[1]):
            os.close(fd)
        for fd in (self.stdin[1], self.stdout[0], self.stderr[0], self.records[0], self.ready[0]):
            os.set_blocking(fd, False)
