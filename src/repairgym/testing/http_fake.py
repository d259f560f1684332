"""Enough HTTP for servers that stand in for real ones: what a client makes of them is its real behaviour.

Reads requests from sockets; hands them to a subclass, which writes what it likes. Invariant: nothing is answered that
the subclass did not write.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class HttpRequest:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    head: str
    """Request line and headers as they came."""
    body: Mapping[str, Any] | None
    """None where there is none."""


class HttpFake(ABC):
    """A server whose answers a subclass gives."""

    @abstractmethod
    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Write the answer; False ends the connection."""

    async def serve(self) -> asyncio.Server:
        """Listen on a free port of the loopback interface."""
        return await asyncio.start_server(self._connection, "127.0.0.1", 0)

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serve from a thread of its own, for clients that run event loops of theirs; gives the base URL."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="http fake", daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self.serve(), loop).result()
        try:
            yield url_of(server)
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False when the connection is to end."""
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        body = json.loads(await reader.readexactly(int(fields.get("content-length", "0"))) or b"null")
        method, target, _ = first.split(" ")
        address = urlsplit(target)
        return await self.answer(HttpRequest(method, address.path, dict(parse_qsl(address.query)), text, body), writer)


def url_of(server: asyncio.Server) -> str:
    """Base URL of OpenAI's protocol on ``server``."""
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def head(status: int, length: int, headers: Mapping[str, str]) -> bytes:
    """Status line and headers of an answer."""
    lines = [f"HTTP/1.1 {status} .", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> bool:
    """Write a whole answer; returns that the connection stays."""
    writer.write(head(status, len(body), headers or {}) + body)
    await writer.drain()
    return True


async def _end(server: asyncio.Server) -> None:
    """Close the server and everything that still waits in its loop."""
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
