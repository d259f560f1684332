"""An event loop in a thread of its own, for callers that are no coroutines or already run in a loop (notebooks).

Reads coroutines; makes their results. Invariant: the thread lives until `close`, so what a coroutine opened (sandboxes,
their spawner) stays open between two calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for a caller that waits."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of ``work``; whatever stops the caller (Ctrl-C) cancels it and waits until it has cleaned up."""
        started = asyncio.run_coroutine_threadsafe(_start(work), self._loop)
        try:
            return asyncio.run_coroutine_threadsafe(_result_of(started.result()), self._loop).result()
        except BaseException:
            asyncio.run_coroutine_threadsafe(_end(started.result()), self._loop).result()
            raise

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _start(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    return asyncio.create_task(work)


async def _result_of(task: asyncio.Task[_T]) -> _T:
    return await task


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
