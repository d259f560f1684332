"""The host's end of the connection to the trusted process of a sandbox, and the deadlines of answers.

Reads and writes frames (:mod:`repairgym.sandbox.guest.wire`) on a Unix socket. Guarantees: one request at a time; a
cancelled or unanswered request closes the channel, because its answer could be taken for another's; the host outlasts
every deadline kept inside (:mod:`repairgym.sandbox.guest.deadlines`), so a missed deadline never loses an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from repairgym.errors import SandboxContentError, SandboxError, SandboxLostError
from repairgym.sandbox.guest import wire
from repairgym.sandbox.guest.deadlines import MAX_EXTENSION_S
from repairgym.sandbox.guest.files import PlacingError, TooLargeError

_ERRORS: dict[str, type[OSError]] = {
    error.__name__: error for error in (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
}

_NO_ROOM = frozenset({"ENOSPC", "EDQUOT", "EFBIG"})
GRACE_S = 30.0
"""Seconds that an answer may take beyond the deadline of its request."""


def check_had_time(answer: wire.Header, timeout_s: float) -> None:
    """Remove ``is_starved`` from ``answer``; raise ``SandboxError`` when it is true.

    The deadline then passed while the processes inside waited for a processor.
    """
    if answer.pop("is_starved"):
        raise SandboxError(
            f"a command with a deadline of {timeout_s:g} s hardly got a processor in {answer['duration_s']:.0f} s: "
            "the machine is too busy; run fewer things at once (rollout.max_in_flight, num_workers)"
        )


class Request(Protocol):
    """A function that sends a request and waits for its answer: see :meth:`Channel.request`."""

    async def __call__(self, header: wire.Header, blobs: Sequence[bytes] = (), *, timeout_s: float) -> wire.Frame:
        """See :meth:`Channel.request`."""


class Channel:
    """Requests and answers over one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self._is_closed = False

    @classmethod
    async def open(cls, connection: socket.socket) -> Channel:
        """Make a channel over a connected Unix socket and take ownership of it."""
        connection.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=connection))

    async def request(self, header: wire.Header, blobs: Sequence[bytes] = (), *, timeout_s: float) -> wire.Frame:
        """Send a request and wait for its answer.

        Raises:
            SandboxLostError: the other end is gone or does not answer in ``timeout_s``.
            SandboxContentError: files that code inside wrote prevent it.
            SandboxError: the trusted process could not do it.
            OSError: a file operation failed (the kinds in ``_ERRORS``).
        """
        async with self._lock:
            return await self._request(header, blobs, timeout_s=timeout_s)

    async def run(self, header: wire.Header, blobs: Sequence[bytes], timeout_s: float) -> wire.Frame:
        """Request something that runs untrusted code for at most ``timeout_s``; see :func:`check_had_time`."""
        wait_s = timeout_s + MAX_EXTENSION_S + GRACE_S
        answer, parts = await self.request({**header, "timeout_s": timeout_s}, blobs, timeout_s=wait_s)
        check_had_time(answer, timeout_s)
        return answer, parts

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Request]:
        """Keep every other request out; yield a function that makes requests like :meth:`request` meanwhile."""
        async with self._lock:
            yield self._request

    async def _request(self, header: wire.Header, blobs: Sequence[bytes] = (), *, timeout_s: float) -> wire.Frame:
        if self._is_closed:
            raise SandboxLostError("the sandbox is closed; make another one")
        try:
            answer = await asyncio.wait_for(self._exchange(header, blobs), timeout_s)
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, EOFError, asyncio.IncompleteReadError)):
                cause = f"no answer in {timeout_s:.0f} s" if isinstance(error, TimeoutError) else "connection lost"
                raise SandboxLostError(f"the sandbox ended during {header['op']!r}: {cause}") from error
            raise
        _raise_error(answer[0])
        return answer

    async def _exchange(self, header: wire.Header, blobs: Sequence[bytes]) -> wire.Frame:
        self._writer.write(wire.pack_request(header, blobs))
        await self._writer.drain()
        return await self.receive()

    async def receive(self) -> wire.Frame:
        """Receive the next frame."""
        prefix = await self._reader.readexactly(wire.PREFIX.size)
        num_header_bytes, num_body_bytes = wire.PREFIX.unpack(prefix)
        text = await self._reader.readexactly(num_header_bytes)
        return wire.unpack(text, await self._reader.readexactly(num_body_bytes))

    def close(self) -> None:
        """Close the connection, which ends the other side; safe to call twice."""
        self._is_closed = True
        with contextlib.suppress(RuntimeError):
            self._writer.close()


class OpeningChannel(Channel):
    """A channel that is still being opened; the first request waits for it.

    A failed opening fails every request; closing the channel cancels the opening.
    """

    def __init__(self, opening: asyncio.Future[Channel]) -> None:
        self._opening = opening
        self._lock = asyncio.Lock()
        self._is_closed = False
        # Retrieves the exception also when no request follows.
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _request(self, header: wire.Header, blobs: Sequence[bytes] = (), *, timeout_s: float) -> wire.Frame:
        if self._is_closed:
            raise SandboxLostError("the sandbox is closed; make another one")
        try:
            channel = await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._opening.cancelled():
                raise SandboxLostError("the sandbox was closed while it was being made") from None
            self.close()
            raise
        return await channel._request(header, blobs, timeout_s=timeout_s)

    def close(self) -> None:
        """See :meth:`Channel.close`."""
        self._is_closed = True
        if not self._opening.done():
            self._opening.cancel()
        elif not self._opening.cancelled() and self._opening.exception() is None:
            self._opening.result().close()


def _raise_error(answer: wire.Header) -> None:
    if "error" not in answer:
        return
    message = f"{answer['message']}"
    if answer["error"] == TooLargeError.__name__ or answer["code"] in _NO_ROOM:
        raise SandboxContentError(f"{message}; the files that code in the sandbox wrote exceed its bounds")
    if answer["error"] == PlacingError.__name__:
        raise SandboxContentError(message)
    if answer["error"] == wire.UnusableError.__name__:
        raise SandboxError(message)
    if answer["error"] in _ERRORS:
        raise _ERRORS[answer["error"]](message)
    raise SandboxError(f"the sandbox could not do its work: {answer['error']}: {message}\n{answer['traceback']}")
