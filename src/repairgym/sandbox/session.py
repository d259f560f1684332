"""A persistent shell session on the host's side.

The state of the shell (working folder, variables, functions, options) is an opaque text that the last shell wrote and
the next shell reads. The host holds it between commands, so a snapshot or a fork of a sandbox carries its sessions
along. Guarantees: a state is only sent back into a sandbox, never interpreted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from repairgym.errors import InputError
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.channel import Channel, answer_timeout_s, check_had_time

_SIGNAL_STATUS = 128


@dataclass(frozen=True)
class SessionState:
    """The state of a session between two commands."""

    env: tuple[tuple[str, str], ...] = ()
    """Variables of its first shell."""
    text: bytes = b""
    cwd: str = "/testbed"
    last_status: int = 0


class GuestSession:
    """Implements :class:`~repairgym.sandbox.base.ShellSession` over a channel."""

    def __init__(self, name: str, channel: Channel, state: SessionState) -> None:
        self.name = name
        self._channel = channel
        self.state = state
        self._lock = asyncio.Lock()

    @property
    def cwd(self) -> str:
        """See :attr:`repairgym.sandbox.base.ShellSession.cwd`."""
        return self.state.cwd

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        """See :meth:`repairgym.sandbox.base.ShellSession.run`."""
        if "\0" in command:
            raise InputError("got a command with a NUL character, which no shell can read; remove it")
        script = command.encode("utf-8", "surrogateescape")
        async with self._lock:
            state = self.state
            header = {
                "op": "session",
                "env": dict(state.env),
                "last_status": state.last_status,
                "timeout_s": timeout_s,
            }
            blobs = [stdin, script, state.text]
            wait_s = answer_timeout_s(timeout_s)
            answer, (stdout, stderr, text) = await self._channel.request(header, blobs, timeout_s=wait_s)
            check_had_time(answer, timeout_s)
            cwd = str(answer.pop("cwd"))
            result = ExecResult(stdout=stdout, stderr=stderr, **answer)
            last_status = _last_status(result)
            if result.is_state_restored:
                text, cwd = state.text, state.cwd
            self.state = SessionState(state.env, text, cwd, last_status)
        return result


def _last_status(result: ExecResult) -> int:
    """Return the value of ``$?`` after ``result``."""
    if result.exit_status is not None:
        return result.exit_status
    return _SIGNAL_STATUS + (result.signal or 9)
