"""An event loop in its own thread, for callers that are not coroutines or already run in a loop (notebooks).

Guarantee: the thread lives until `close`, so sandboxes and their spawner stay open between two calls.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for a caller that waits."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of ``work``; an interrupt of the caller (Ctrl-C) cancels it and waits for its cleanup."""
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.ended.result()
        except BaseException:
            self._loop.call_soon_threadsafe(call.stop)
            concurrent.futures.wait([call.ended])
            raise

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Call(Generic[_T]):
    """A running coroutine; the caller makes it, so that it can be stopped at any line, and waits for ``ended``."""

    def __init__(self, work: Coroutine[Any, Any, _T]) -> None:
        self.ended: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._work = work
        self._task: asyncio.Task[_T] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._end)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()
            self.ended.set_exception(asyncio.CancelledError())

    def _end(self, task: asyncio.Task[_T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.ended.set_result(task.result())
        else:
            self.ended.set_exception(error)
