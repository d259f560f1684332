"""The run of one untrusted process, from its fork to the end of all its descendants.

Reads a child function and limits, makes a :class:`Finished`. Guarantees: the exit status comes from the kernel, never
from the process's output; when :func:`run` returns, no descendant of the child is left; memory for output is bounded
whatever the process writes.
"""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from typing import Callable, List, NamedTuple, Optional

from . import syscalls
from .accounting import Accounting, Usage, children_cpu_s
from .deadlines import Deadline, Scheduled, scheduled
from .reaping import Reaper, descendants
from .streams import READY_FD, BoundedBuffer, Pipes

_CHUNK_BYTES = 1 << 16
_TERM_GRACE_S = 0.3
_REAP_INTERVAL_S = 0.5
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


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
    waited_s: float = 0.0
    """Part of ``duration_s`` in which the longest waiting process was ready but had no processor, as far as it and its
    children were alive at the end."""

    @property
    def exit_status(self) -> Optional[int]:
        """Exit status, None when killed or too late."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def signal(self) -> Optional[int]:
        """Number of the signal that killed it."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


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
        os.write(READY_FD, b".")
        os.close(READY_FD)
        status = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class _Run:
    """One running process."""

    def __init__(
        self, pid: int, pipes: Pipes, stdin: bytes, limits: List[int], reaper: Reaper, accounting: Accounting
    ) -> None:
        self._pid = pid
        self._pidfd = syscalls.pidfd_open(pid)
        self._ready_fd = pipes.ready[0]
        self._stdin = memoryview(stdin)
        self._stdin_fd: Optional[int] = pipes.stdin[1]
        self.buffers = [BoundedBuffer(limit) for limit in limits]
        sources = (pipes.stdout[0], pipes.stderr[0], pipes.records[0])
        self._readers = {fd: self.buffers[index] for index, fd in enumerate(sources)}
        self._reaper = reaper
        self._accounting = accounting
        self._poll = select.poll()
        self._status: Optional[int] = None
        self.waited_s = 0.0
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

    def wait(self, deadline: Deadline, watched: int) -> bool:
        """Serve the pipes until the child has ended (True) or the deadline passed (False).

        Raises:
            EOFError: the host hung up on descriptor ``watched``.
        """
        self._poll.register(watched, select.POLLRDHUP)
        try:
            while self._status is None:
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
        statuses = self._reaper.end_all(self._accounting.note)
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
        self._reaper.signal_all(signal.SIGTERM)
        self.wait(Deadline(_TERM_GRACE_S, scheduled_below, before=scheduled_below()), watched)


def run(
    body: Callable[[], int],
    *,
    prepare: Callable[[], None],
    stdin: bytes,
    timeout_s: float,
    limits: List[int],
    watched: int,
    reaper: Reaper,
    accounting: Accounting,
) -> Finished:
    """Run ``body`` in a forked child (its result is the exit status unless it calls execve).

    Args:
        body: Called in the child after ``prepare``: untrusted.
        prepare: Called in the child once its descriptors are set up: confines it.
        stdin: Bytes for descriptor 0.
        timeout_s: Deadline (:class:`.deadlines.Deadline`); then SIGTERM, a grace of 0.3 s, SIGKILL to the whole tree.
        limits: Bytes kept of stdout, stderr and the record pipe.
        watched: Descriptor of the host connection.
        reaper: Ends the descendants.
        accounting: Counts and bounds the child.

    Raises:
        EOFError: the host hung up; the caller has to end.
        RuntimeError: ``prepare`` failed.
    """
    start = time.monotonic()
    accounting.begin()
    before = scheduled_below()
    pipes = Pipes()
    pid = os.fork()
    if pid == 0:
        _child(pipes, accounting, prepare, body)
    pipes.become_parent()
    process = _Run(pid, pipes, stdin, limits, reaper, accounting)
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
    return Finished(status, stdout, stderr, records, duration_s, accounting.end(), is_starved, waited_s)


def scheduled_below() -> Scheduled:
    """Read the counts of all processes ever started below this one, which inherits the orphans."""
    there = scheduled(descendants())
    return there._replace(running_s=there.running_s + children_cpu_s())
