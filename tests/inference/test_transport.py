"""Events of a server, as they come over a real connection."""

from __future__ import annotations

import asyncio

import pytest

from repairgym.config.models import EndpointConfig
from repairgym.errors import ServerDownError
from repairgym.inference.transport import EndpointStatistics, Transport
from repairgym.testing.servers import HttpFake, HttpRequest, url_of


class EventServer(HttpFake):
    """Answers everything with the same bytes, in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 .\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for piece in self._pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return False


async def read(pieces: list[bytes], events: list[str]) -> None:
    async with await EventServer(pieces).serve() as server:
        config = EndpointConfig(base_url=url_of(server), model="tiny")
        transport = Transport(config, "", EndpointStatistics())
        try:
            response = await transport.open_events("completions", {})
            events.extend([event async for event in transport.read_events(response)])
        finally:
            await transport.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_separators_of_unicode_end_no_event(end: str) -> None:
    texts = ["a\u2028b", "c\u2029d\x85e\x0cf", "g"]
    stream = f": a comment{end}{end}" + "".join(f"data: {text}{end}{end}" for text in [*texts, "[DONE]"])
    content, events = stream.encode(), list[str]()
    await read([content[:17], content[17:30], content[30:]], events)
    assert events == texts


@pytest.mark.asyncio
async def test_a_last_event_needs_no_end_of_line_but_has_to_come() -> None:
    events = list[str]()
    await read([b"data: a\n\ndata: [DONE]"], events)
    assert events == ["a"]
    with pytest.raises(ServerDownError, match="before its last event"):
        await read([b"data: a\n\n"], events)
