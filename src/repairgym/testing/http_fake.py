"""Enough HTTP for fake servers, so that tests see the real behavior of clients.

Reads requests from sockets and passes them to a subclass, which writes the whole answer.
"""

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
    """Request line and headers, unchanged."""
    body: Mapping[str, Any] | None
    """None without a body."""


class HttpFake(ABC):
    """A server whose subclass writes the answers."""

    @abstractmethod
    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Write the answer; False ends the connection."""

    async def serve(self) -> asyncio.Server:
        """Listen on a free port of the loopback interface."""
        return await asyncio.start_server(self._connection, "127.0.0.1", 0)

    @contextmanager
    def in_thread(self) -> Iterator[str]:
        """Serve from a separate thread, for clients with their own event loops; yield the base URL."""
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
        """Read one request and answer it; return False to end the connection."""
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        body = json.loads(await reader.readexactly(int(fields.get("content-length", "0"))) or b"null")
        method, target, _ = first.split(" ")
        address = urlsplit(target)
        return await self.answer(HttpRequest(method, address.path, dict(parse_qsl(address.query)), text, body), writer)


def url_of(server: asyncio.Server) -> str:
    """Return the base URL of OpenAI's protocol on ``server``."""
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def head(status: int, length: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and headers of an answer."""
    lines = [f"HTTP/1.1 {status} .", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> bool:
    """Write a whole answer; return True, which keeps the connection."""
    writer.write(head(status, len(body), headers or {}) + body)
    await writer.drain()
    return True


async def _end(server: asyncio.Server) -> None:
    """Close the server and cancel every task of its loop."""
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
