"""A cache of execution results, keyed by everything that decides them.

Sound because tasks are certified deterministic; never used by cold regrading or final evaluation. Guarantees: a run
is executed at most once per key even when many episodes request it at once; a failure, or the cancellation of a
caller, is its own: it is not cached, and whoever waited for the same result runs it again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

Key = tuple[str, ...]
Result = TypeVar("Result")


class ExecutionCache:
    """Least-recently-used cache of results, each key of one caller; ``max_entries=0`` disables it."""

    def __init__(self, max_entries: int = 50_000) -> None:
        self._max_entries = max_entries
        self._runs: OrderedDict[Key, Any] = OrderedDict()
        self._in_flight: dict[Key, asyncio.Future[None]] = {}
        self.num_hits = 0
        self.num_misses = 0

    def __contains__(self, key: Key) -> bool:
        """Return True when the result of ``key`` is there, or somebody runs it."""
        return key in self._runs or key in self._in_flight

    async def get_or_run(self, key: Key, execute: Callable[[], Awaitable[Result]]) -> Result:
        """Return the cached result of ``key``, or that of ``execute``, whose error is this caller's alone."""
        if self._max_entries == 0:
            return await execute()
        while key in self:
            try:
                await self._end_of_run(key)
            except Exception:
                # Those that waited run it side by side: one after another they would add up the waits of an outage.
                return self._keep(key, await execute())
            if key in self._runs:
                return cast(Result, self._hit(key))
        return await self._execute(key, execute)

    async def wait_for(self, key: Key) -> Any | None:
        """Return the result of ``key`` that is cached, or that somebody's run makes; None: there is none, or it failed.

        Who needs a place to run it itself waits here first, and takes its place before `get_or_run`: if whoever holds
        the place waited for whoever needs it, both would wait for ever.
        """
        with suppress(Exception):
            await self._end_of_run(key)
        return self._hit(key) if key in self._runs else None

    async def _end_of_run(self, key: Key) -> None:
        """Wait for the run of ``key`` that is in flight, if there is one; raise its error, but not its cancellation."""
        if key not in self._in_flight:
            return
        future = self._in_flight[key]
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not future.cancelled() or (task and task.cancelling()):
                raise

    def _hit(self, key: Key) -> Any:
        self.num_hits += 1
        self._runs.move_to_end(key)
        return self._runs[key]

    async def _execute(self, key: Key, execute: Callable[[], Awaitable[Result]]) -> Result:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = future
        try:
            run = await execute()
        except Exception as error:
            future.set_exception(error)
            future.exception()  # nobody may have waited
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._in_flight[key]
        future.set_result(None)
        return self._keep(key, run)

    def _keep(self, key: Key, run: Result) -> Result:
        self.num_misses += 1
        self._runs[key] = run
        if len(self._runs) > self._max_entries:
            self._runs.popitem(last=False)
        return run
