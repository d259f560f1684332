"""A cache of execution results, keyed by everything that decides them.

Sound because tasks are certified deterministic; never used by cold regrading or final evaluation. Guarantees: a run
is executed at most once per key even when many episodes request it at once; a failure, or the cancellation of a
caller, is its own: it is not cached, and whoever waited for the same result runs it again, one after another.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
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
            if (result := await self.wait_for(key)) is not None:
                return cast(Result, result)
        return await self._execute(key, execute)

    async def wait_for(self, key: Key) -> Any | None:
        """Return the result of ``key`` that is cached, or that somebody's run makes; None: there is none, or it failed.

        Who needs a place to run it itself waits here first, and takes its place before `get_or_run`: if whoever holds
        the place waited for whoever needs it, both would wait for ever.
        """
        if key in self._in_flight:
            future = self._in_flight[key]
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not future.cancelled() or (task and task.cancelling()):
                    raise
        if key not in self._runs:
            return None
        self.num_hits += 1
        self._runs.move_to_end(key)
        return self._runs[key]

    async def _execute(self, key: Key, execute: Callable[[], Awaitable[Result]]) -> Result:
        self.num_misses += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = future
        try:
            run = await execute()
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._in_flight[key]
        future.set_result(None)
        self._runs[key] = run
        if len(self._runs) > self._max_entries:
            self._runs.popitem(last=False)
        return run
