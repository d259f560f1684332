"""The trusted process that serves one sandbox, on the host's side.

Reads a command line, makes a :class:`ServingProcess` with a channel. Guarantees: the process holds no descriptor of the
host except its socket and its log; it ends when the host hangs up; nothing here forks (``vfork`` and ``execve`` only),
so the size of the calling process does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable

from repairgym.sandbox.channel import Channel

_END_TIMEOUT_S = 30.0
_NUM_LOG_BYTES = 4000


class ServingProcess:
    """A process, the channel to it and its log."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log_fd: int) -> None:
        self._process = process
        self._log_fd = log_fd
        self.channel = channel

    @classmethod
    async def start(cls, describe: Callable[[int], list[str]]) -> ServingProcess:
        """Start the command that ``describe`` returns for the number of its socket.

        Raises:
            OSError: there is no such program.
        """
        process, ours, log_fd = _start(describe)
        return cls(process, await Channel.open(ours), log_fd)

    @property
    def log(self) -> str:
        """The process's standard error, at most its first 4000 bytes."""
        return os.pread(self._log_fd, _NUM_LOG_BYTES, 0).decode(errors="replace").strip()

    async def end(self) -> None:
        """Hang up and wait for the end of the process; kill it after 30 s. Call it once."""
        self.channel.close()
        try:
            await asyncio.to_thread(self._process.wait, _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.to_thread(self._process.wait)
        os.close(self._log_fd)


def _start(describe: Callable[[int], list[str]]) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Return the process, our end of its socket and a descriptor of its log."""
    ours, theirs = socket.socketpair()
    log_fd = os.memfd_create("repairgym-sandbox-log")
    try:
        with theirs:
            process = subprocess.Popen(
                describe(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_fd,
                start_new_session=True,
                cwd="/",
            )
    except BaseException:
        os.close(log_fd)
        ours.close()
        raise
    return process, ours, log_fd
