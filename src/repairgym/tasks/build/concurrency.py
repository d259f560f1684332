"""Concurrency: with a bound and an order, so that results do not depend on timing, or as results come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def ordered_map(
    function: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], limit: int
) -> AsyncGenerator[tuple[ItemT, ResultT], None]:
    """Results of ``function`` in the order of ``items``, at most ``limit`` in flight.

    Item n + ``limit`` is drawn from ``items`` only after result n was consumed, so a lazy iterable may depend on the
    results so far and still give the same sequence each time. Leaving the loop cancels what is in flight.
    """
    source = iter(items)
    pending: deque[tuple[ItemT, asyncio.Future[ResultT]]] = deque()
    try:
        while True:
            while len(pending) < limit and (item := next(source, _END)) is not _END:
                pending.append((item, asyncio.ensure_future(function(item))))  # type: ignore[arg-type]
            if not pending:
                return
            done, future = pending.popleft()
            yield done, await future
    finally:
        for _, future in pending:
            future.cancel()
        await asyncio.gather(*(future for _, future in pending), return_exceptions=True)


_END = object()


async def as_completed(work: Iterable[Coroutine[Any, Any, ResultT]]) -> AsyncGenerator[ResultT, None]:
    """Results in the order in which they come, all in flight at once.

    Leaving the loop cancels what is left and waits until it has cleaned up.
    """
    pending = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        for done in asyncio.as_completed(pending):
            yield await done
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
