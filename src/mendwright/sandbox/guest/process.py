"""One untrusted process: started, fed, read with bounds, ended with all its descendants.

Reads a child function and limits, makes a :class:`Finished`. Invariants: the exit status comes from the kernel, never
from what the process wrote; when :func:`run` returns, no process that the child started is left; memory used for
output is bounded whatever the process writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
import traceback
from typing import Callable, Dict, List, NamedTuple, Optional, Protocol

from . import syscalls

RECORD_FD = 3
"""Descriptor of the record pipe in the child."""
_READY_FD = 4
_CHUNK_BYTES = 1 << 16
_TERM_GRACE_S = 0.3
_REAP_INTERVAL_S = 0.5


class BoundedBuffer:
    """Keeps the first and the last bytes of a stream and counts all of them."""

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
            del self._tail[: -self._num_tail]

    @property
    def is_truncated(self) -> bool:
        """True when bytes in the middle were dropped."""
        return self.num_bytes > self._num_head + self._num_tail

    def value(self) -> bytes:
        """The kept bytes, with a note where bytes are missing."""
        if not self.is_truncated:
            return bytes(self._head + self._tail)
        num_dropped = self.num_bytes - self._num_head - self._num_tail
        note = b"\n[... %d bytes dropped ...]\n" % num_dropped
        return bytes(self._head) + note + bytes(self._tail[-self._num_tail :])


class Finished(NamedTuple):
    """How a process ended and what it wrote."""

    status: Optional[int]
    """Wait status of the kernel; None when the deadline passed."""
    stdout: BoundedBuffer
    stderr: BoundedBuffer
    records: BoundedBuffer
    duration_s: float

    @property
    def exit_status(self) -> Optional[int]:
        """Exit status, None when killed or too late."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def signal(self) -> Optional[int]:
        """Number of the signal that killed it."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


class Reaper(Protocol):
    """Ends every process that came from here."""

    def signal_all(self, number: int) -> None:
        """Send signal ``number`` to every descendant."""
        ...

    def end_all(self) -> Dict[int, int]:
        """Kill and reap every descendant; returns wait statuses by pid."""
        ...


class NamespaceReaper:
    """Ends processes of the pid namespace whose first process is the caller."""

    def signal_all(self, number: int) -> None:
        """See :class:`Reaper`.

        Raises:
            RuntimeError: the caller is not the first process of a pid namespace, so strangers would be hit.
        """
        if os.getpid() != 1:
            raise RuntimeError("signal_all outside of a pid namespace would end processes of the host")
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)

    def end_all(self) -> Dict[int, int]:
        """See :class:`Reaper`."""
        statuses: Dict[int, int] = {}
        while True:
            self.signal_all(signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return statuses
            statuses[pid] = status


class _Pipes:
    """The pipes between the trusted process and the child."""

    def __init__(self) -> None:
        self.stdin = os.pipe()
        self.stdout = os.pipe()
        self.stderr = os.pipe()
        self.records = os.pipe()
        self.ready = os.pipe()

    def become_child(self) -> None:
        """In the child: descriptors 0 to 4 are the pipes, nothing else is open."""
        sources = (self.stdin[0], self.stdout[1], self.stderr[1], self.records[1], self.ready[1])
        # Moved away first: a source may have one of the target numbers.
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _READY_FD + 1) for fd in sources]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=True)
        syscalls.close_range(_READY_FD + 1)

    def become_parent(self) -> None:
        """In the parent: close the child's ends, make ours non-blocking."""
        for fd in (self.stdin[0], self.stdout[1], self.stderr[1], self.records[1], self.ready[1]):
            os.close(fd)
        for fd in (self.stdin[1], self.stdout[0], self.stderr[0], self.records[0], self.ready[0]):
            os.set_blocking(fd, False)


def _child(pipes: _Pipes, prepare: Callable[[], None], body: Callable[[], int]) -> None:
    status = 1
    try:
        os.setsid()
        pipes.become_child()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        # From here on the code is untrusted; without this byte the trouble is ours.
        os.write(_READY_FD, b".")
        os.close(_READY_FD)
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class _Run:
    """State of one running process."""

    def __init__(self, pid: int, pipes: _Pipes, stdin: bytes, limits: List[int], reaper: Reaper) -> None:
        self._pid = pid
        self._pidfd = syscalls.pidfd_open(pid)
        self._ready_fd = pipes.ready[0]
        self._stdin = memoryview(stdin)
        self._stdin_fd: Optional[int] = pipes.stdin[1]
        self.buffers = [BoundedBuffer(limit) for limit in limits]
        self._readers = dict(zip((pipes.stdout[0], pipes.stderr[0], pipes.records[0]), self.buffers))
        self._reaper = reaper
        self._poll = select.poll()
        self._status: Optional[int] = None
        self._register()

    def _register(self) -> None:
        self._poll.register(self._pidfd, select.POLLIN)
        for fd in self._readers:
            self._poll.register(fd, select.POLLIN)
        if self._stdin and self._stdin_fd is not None:
            self._poll.register(self._stdin_fd, select.POLLOUT)
        else:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin_fd is not None:
            os.close(self._stdin_fd)
            self._stdin_fd = None

    def _feed(self) -> None:
        assert self._stdin_fd is not None
        try:
            self._stdin = self._stdin[os.write(self._stdin_fd, self._stdin[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._poll.unregister(self._stdin_fd)
            self._close_stdin()

    def _read(self, fd: int) -> bool:
        """Read once; False when there is nothing (more)."""
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._readers[fd].append(data)
            return True
        self._poll.unregister(fd)
        os.close(fd)
        del self._readers[fd]
        return False

    def wait(self, deadline: float, watched: int) -> bool:
        """Serve the pipes until the child has ended (True) or the deadline passed (False).

        Raises:
            EOFError: the host hung up on descriptor ``watched``.
        """
        self._poll.register(watched, select.POLLRDHUP)
        try:
            while self._status is None:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._serve(min(remaining_s, _REAP_INTERVAL_S), watched)
            return True
        finally:
            self._poll.unregister(watched)

    def _serve(self, wait_s: float, watched: int) -> None:
        for fd, _ in self._poll.poll(wait_s * 1000 + 1):
            if fd == watched:
                raise EOFError("the host hung up")
            if fd in self._readers:
                self._read(fd)
            elif fd == self._stdin_fd:
                self._feed()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def finish(self, is_timed_out: bool) -> Optional[int]:
        """End everything, drain the pipes; returns the wait status (None when timed out)."""
        statuses = self._reaper.end_all()
        for fd in list(self._readers):
            while self._read(fd):
                pass
        for fd in list(self._readers):
            os.close(fd)
        self._close_stdin()
        os.close(self._pidfd)
        self._check_ready()
        status = self._status if self._status is not None else statuses.get(self._pid)
        return None if is_timed_out else status

    def _check_ready(self) -> None:
        try:
            is_ready = os.read(self._ready_fd, 1) == b"."
        finally:
            os.close(self._ready_fd)
        if not is_ready:
            raise RuntimeError(f"a process could not be confined: {self.buffers[1].value().decode(errors='replace')}")

    def terminate(self, watched: int) -> None:
        """Ask everything to end and give it a moment."""
        self._reaper.signal_all(signal.SIGTERM)
        self.wait(time.monotonic() + _TERM_GRACE_S, watched)


def run(
    body: Callable[[], int],
    *,
    prepare: Callable[[], None],
    stdin: bytes,
    timeout_s: float,
    limits: List[int],
    watched: int,
    reaper: Reaper,
) -> Finished:
    """Run ``body`` in a forked child (its result is the exit status unless it calls execve).

    Args:
        body: Called in the child after ``prepare``: untrusted.
        prepare: Called in the child once its descriptors are set up: confines it.
        stdin: Bytes for descriptor 0.
        timeout_s: Deadline; then SIGTERM, a grace of 0.3 s, SIGKILL to the whole tree.
        limits: Bytes kept of stdout, stderr and the record pipe.
        watched: Descriptor of the host connection.
        reaper: How descendants are ended.

    Raises:
        EOFError: the host hung up; the caller has to end.
        RuntimeError: ``prepare`` failed.
    """
    start = time.monotonic()
    pipes = _Pipes()
    pid = os.fork()
    if pid == 0:
        _child(pipes, prepare, body)
    pipes.become_parent()
    process = _Run(pid, pipes, stdin, limits, reaper)
    is_ended = process.wait(start + timeout_s, watched)
    if not is_ended:
        process.terminate(watched)
    status = process.finish(is_timed_out=not is_ended)
    return Finished(status, *process.buffers, time.monotonic() - start)
