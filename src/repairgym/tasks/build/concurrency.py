"""Bounded concurrency in a fixed order, and results in the order of completion."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def ordered_map(
    function: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], limit: int
) -> AsyncGenerator[tuple[ItemT, ResultT], None]:
    """Yield results of ``function`` in the order of ``items``, at most ``limit`` in flight.

    Item n + ``limit`` is drawn only after result n was consumed, so that a lazy iterable may depend on earlier results
    and still give the same sequence each time. Leaving the loop cancels the calls in flight.
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
    """Yield results in the order of completion, all in flight at once.

    Leaving the loop cancels the rest and waits for its clean-up.
    """
    pending = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        for done in asyncio.as_completed(pending):
            yield await done
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
