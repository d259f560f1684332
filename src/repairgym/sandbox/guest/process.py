"""The run of one untrusted process, from its fork to the end of all its descendants.

Reads a child function and limits, makes a :class:`Finished`. Guarantees: the exit status comes from the kernel, never
from the process's output; the child has the descriptors 0 to :data:`_READY_FD` and no other; when :func:`run` returns,
no descendant of the child is left; memory for output is bounded whatever the process writes.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
import traceback
from typing import Callable, List, NamedTuple, Optional, Union

from . import syscalls
from .deadlines import Deadline, Scheduled, descendants, scheduled
from .reaping import Accounting, SignalAll, Usage, children_cpu_s, end_all

_READY_FD = 4
"""Descriptor on which the child reports that it is confined; closed before untrusted code runs."""
_CHUNK_BYTES = 1 << 16
_TERM_GRACE_S = 0.3
_REAP_INTERVAL_S = 0.5
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


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


Cut = Callable[[bytes], Optional[int]]
"""Function that gets the bytes of the record pipe as they come and returns how many of them are still of the run; None:
all, and the run is not over."""


class Pipes:
    """The pipes between the trusted process and the child: each a (read, write) pair."""

    def __init__(self) -> None:
        self.stdin, self.stdout, self.stderr, self.records, self.ready = (os.pipe() for _ in range(5))
        self._child_ends = (self.stdin[0], self.stdout[1], self.stderr[1], self.records[1], self.ready[1])

    def become_child(self) -> None:
        """In the child, make the pipes descriptors 0 to 4 and close all others."""
        # Moved away first: a source may have one of the target numbers.
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _READY_FD + 1) for fd in self._child_ends]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=True)
        syscalls.close_range(_READY_FD + 1)

    def become_parent(self) -> None:
        """In the parent, close the child's ends and make ours non-blocking."""
        for fd in self._child_ends:
            os.close(fd)
        for fd in (self.stdin[1], self.stdout[0], self.stderr[0], self.records[0], self.ready[0]):
            os.set_blocking(fd, False)


class Finished(NamedTuple):
    """The end of a process and its output."""

    status: Optional[int]
    """Wait status of the kernel; None when the deadline passed."""
    stdout: BoundedBuffer
    stderr: BoundedBuffer
    records: BoundedBuffer
    duration_s: float
    usage: Usage
    is_starved: bool
    """The deadline passed while its processes hardly got a processor, so it says nothing about them."""
    is_stopped: bool = False
    """The records said that the rest is not needed."""
    waited_s: float = 0.0
    """Part of ``duration_s`` in which the longest waiting process was ready but had no processor, as far as it and its
    children were alive at the end."""


def _child(pipes: Pipes, accounting: Accounting, prepare: Callable[[], None], body: Callable[[], int]) -> None:
    status = 1
    try:
        os.setsid()
        accounting.enter()
        pipes.become_child()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Masks are inherited, and a host may have one: all processes of Ray block SIGINT.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prepare()
        # From here on the code is untrusted; without this byte the failure is ours.
        os.write(_READY_FD, b".")
        os.close(_READY_FD)
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class _Run:
    """One running process."""

    def __init__(
        self,
        pid: int,
        pipes: Pipes,
        stdin: bytes,
        limits: List[int],
        signal_all: SignalAll,
        accounting: Accounting,
        cut: Optional[Cut],
    ) -> None:
        self._pid = pid
        self._pidfd = syscalls.pidfd_open(pid)
        self._ready_fd = pipes.ready[0]
        self._stdin = memoryview(stdin)
        self._stdin_fd: Optional[int] = pipes.stdin[1]
        self.buffers = [BoundedBuffer(limit) for limit in limits]
        sources = (pipes.stdout[0], pipes.stderr[0], pipes.records[0])
        self._readers = {fd: self.buffers[index] for index, fd in enumerate(sources)}
        self._record_fd = pipes.records[0]
        self._cut = cut
        self.is_stopped = False
        self._signal_all = signal_all
        self._accounting = accounting
        self._status: Optional[int] = None
        self.waited_s = 0.0
        self._poll = select.poll()
        for fd in (self._pidfd, *self._readers):
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
            self._readers[fd].append(self._needed(data) if fd == self._record_fd else data)
            return True
        self._poll.unregister(fd)
        os.close(fd)
        del self._readers[fd]
        return False

    def _needed(self, records: bytes) -> bytes:
        """Return the part of ``records`` before the stop, and note the stop."""
        if self.is_stopped or self._cut is None:
            return b"" if self.is_stopped else records
        place = self._cut(records)
        self.is_stopped = place is not None
        return records[:place]

    def wait(self, deadline: Deadline, watched: int) -> bool:
        """Serve the pipes until the child ended or is stopped (True) or the deadline passed.

        ``EOFError``: the host hung up.
        """
        self._poll.register(watched, select.POLLRDHUP)
        try:
            while self._status is None and not self.is_stopped:
                remaining_s = deadline.remaining_s()
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
        if self._is_to_reap():
            self.waited_s = scheduled_below().waiting_s  # a reaped process has no counts any more
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._accounting.note(usage)
            if pid == self._pid:
                self._status = status

    def _is_to_reap(self) -> bool:
        """Return True when the child has ended and its status was not read yet."""
        try:
            return self._status is None and os.waitid(os.P_PID, self._pid, _HAS_ENDED) is not None
        except ChildProcessError:
            return False

    def finish(self, is_timed_out: bool) -> Optional[int]:
        """End everything and drain the pipes; return the wait status (None when timed out)."""
        statuses = end_all(self._signal_all, self._accounting.note)
        for fd in list(self._readers):
            while self._read(fd):
                pass
        for fd in list(self._readers):
            os.close(fd)
        self._close_stdin()
        os.close(self._pidfd)
        self._check_ready(is_timed_out)
        status = self._status if self._status is not None else statuses.get(self._pid)
        return None if is_timed_out else status

    def _check_ready(self, is_timed_out: bool) -> None:
        try:
            is_ready = is_timed_out or os.read(self._ready_fd, 1) == b"."
        finally:
            os.close(self._ready_fd)
        if not is_ready:
            raise RuntimeError(f"a process could not be confined: {self.buffers[1].value().decode(errors='replace')}")

    def terminate(self, watched: int) -> None:
        """Send SIGTERM to all processes and wait a moment."""
        self._signal_all(signal.SIGTERM)
        self.wait(Deadline(_TERM_GRACE_S, scheduled_below, before=scheduled_below()), watched)


def run(
    body: Callable[[], int],
    *,
    prepare: Callable[[], None],
    stdin: Union[bytes, Callable[[], bytes]],
    timeout_s: float,
    limits: List[int],
    watched: int,
    signal_all: SignalAll,
    accounting: Accounting,
    make_cut: Callable[[], Optional[Cut]] = lambda: None,
) -> Finished:
    """Run the untrusted ``body`` in a forked child (its result is the exit status unless it calls execve).

    ``prepare`` confines the child once its descriptors are set up; a function ``stdin``, and then ``make_cut``, is
    called when the child, which inherits the memory of this process, is there; ``limits`` are the bytes kept of stdout,
    stderr and the record pipe; ``watched`` is the descriptor of the host connection. After the deadline
    (:class:`.deadlines.Deadline`) come SIGTERM, a grace of 0.3 s, and SIGKILL to the whole tree. ``EOFError``: the host
    hung up, and the caller has to end; ``RuntimeError``: ``prepare`` failed.
    """
    start = time.monotonic()
    accounting.begin()
    before = scheduled_below()
    pipes = Pipes()
    pid = os.fork()
    if pid == 0:
        _child(pipes, accounting, prepare, body)
    pipes.become_parent()
    text = stdin() if callable(stdin) else stdin
    process = _Run(pid, pipes, text, limits, signal_all, accounting, make_cut())
    deadline = Deadline(timeout_s, scheduled_below, before)
    is_ended = process.wait(deadline, watched)
    is_starved = not is_ended and deadline.is_starved
    if not is_ended:
        process.waited_s = scheduled_below().waiting_s
        process.terminate(watched)
    status = process.finish(is_timed_out=not is_ended)
    stdout, stderr, records = process.buffers
    duration_s = time.monotonic() - start
    waited_s = min(process.waited_s, duration_s)
    return Finished(
        status, stdout, stderr, records, duration_s, accounting.end(), is_starved, process.is_stopped, waited_s
    )


def scheduled_below() -> Scheduled:
    """Read the counts of all processes ever started below this one, which inherits the orphans."""
    there = scheduled(descendants())
    return there._replace(running_s=there.running_s + children_cpu_s())
