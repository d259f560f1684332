"""The running answers of a server: their events, their bound, and their end when a client goes away.

Guarantees: an iterator of events that is closed or cancelled ends the sampling of all its answers; no more answers are
held than the queue allows.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from starlette.types import Receive

from repairgym.serving.models import ServedModel
from repairgym.serving.records import AnyRequest, Event, ModelReply, RequestError

_CLIENT_GONE = 499
"""nginx's status for a client that closed the connection."""
ResultT = TypeVar("ResultT")


class Queue:
    """The places of a server: answers that are sampled and answers that wait."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.running = asyncio.Semaphore(max_running)
        self._limit = max_running + max_waiting
        self._num_held = 0

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Hold ``count`` places; `RequestError` where so many are not free."""
        if count > self._limit:
            raise RequestError(f"n: {count} answers are more than this server holds at one time, {self._limit}")
        if self._num_held + count > self._limit:
            raise RequestError(
                f"{self._num_held} answers are sampled or wait already, of {self._limit}; try again later",
                status=429,
                code="queue_full",
            )
        self._num_held += count
        try:
            yield
        finally:
            self._num_held -= count


async def sample(
    model: ServedModel, request: AnyRequest, prompts: Sequence[list[int]], queue: Queue
) -> AsyncGenerator[Event, None]:
    """Yield the events of all answers as they come; the last of each is its `ModelReply`."""
    events: asyncio.Queue[Event | BaseException] = asyncio.Queue()

    async def run(number: int) -> None:
        prompt_ids = prompts[number // request.sampling.num_choices]
        async with queue.running:
            events.put_nowait(await model.reply(request, number, prompt_ids, events.put_nowait))

    def report_failure(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            events.put_nowait(RequestError("the model was stopped", status=503, code="stopped"))
        elif (error := task.exception()) is not None:
            events.put_nowait(error)

    with queue.hold(request.num_replies):
        tasks = [asyncio.create_task(run(number)) for number in range(request.num_replies)]
        for task in tasks:
            task.add_done_callback(report_failure)
        num_open = len(tasks)
        try:
            while num_open:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                num_open -= isinstance(event, ModelReply)
                yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(receive: Receive, work: Awaitable[ResultT]) -> ResultT:
    """Return the result of ``work``; cancels it when the client closes its connection."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("the client has disconnected", status=_CLIENT_GONE, code="client_gone")
        return task.result()
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
