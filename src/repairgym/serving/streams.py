"""Answers as streams of server-sent events.

Guarantees: the sampling ends when the client disconnects or reads nothing for ``timeout_s``; what a slow client has not
read yet is bounded by the answer; an error behind the first event is the last event of the stream.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from repairgym.errors import RepairGymError
from repairgym.serving.dialects.base import Dialect, Exchange, Frame
from repairgym.serving.records import Delta, Event, ModelReply, RequestError
from repairgym.serving.sampling import unless_disconnected

_LOG = logging.getLogger(__name__)


class EventStream(Response):
    """The response to a request that asks for a stream."""

    media_type = "text/event-stream"

    def __init__(
        self,
        dialect: Dialect,
        exchange: Exchange,
        first: Event,
        events: AsyncGenerator[Event, None],
        timeout_s: float,
    ) -> None:
        """Write ``first`` and the rest of ``events``."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._dialect = dialect
        self._exchange = exchange
        self._first = first
        self._events = events
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        async with aclosing(self._events):
            with suppress(RequestError, TimeoutError):  # nobody is there to read of it
                await unless_disconnected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async def send_in_time(kind: str, **content: Any) -> None:
            async with asyncio.timeout(self._timeout_s):
                await send({"type": f"http.response.{kind}", **content})

        await send_in_time("start", status=self.status_code, headers=self.raw_headers)
        async for frame in self._frames():
            await send_in_time("body", body=frame.encode(), more_body=True)
        await send_in_time("body", body=b"", more_body=False)

    async def _frames(self) -> AsyncIterator[Frame]:
        writer = self._dialect.writer(self._exchange)
        replies = []
        try:
            for frame in writer.start():
                yield frame
            async for event in self._all_events():
                if isinstance(event, ModelReply):
                    replies.append(event)
                frames = writer.grow(event) if isinstance(event, Delta) else writer.end_reply(event)
                for frame in frames:
                    yield frame
            for frame in writer.end(sorted(replies, key=lambda reply: reply.number)):
                yield frame
        except RequestError as error:
            yield self._dialect.error_frame(error)
        except RepairGymError as error:
            yield self._dialect.error_frame(RequestError(str(error), status=500, code=type(error).__name__))
        except Exception:
            _LOG.exception("an answer failed while it was sent")
            told = RequestError("the server failed; its log says why", status=500, code="failed")
            yield self._dialect.error_frame(told)

    async def _all_events(self) -> AsyncIterator[Event]:
        yield self._first
        async for event in self._events:
            yield event
