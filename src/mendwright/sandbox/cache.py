"""A cache of test runs, keyed by everything that decides their outcome.

Sound because tasks are certified deterministic; never used by cold regrading or final evaluation. Invariant: a run is
executed at most once per key even when many episodes ask at the same moment; failures of the sandbox are not cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from mendwright.records import TestRun

Key = tuple[str, ...]


class ExecutionCache:
    """Least-recently-used cache of :class:`TestRun`; ``max_entries=0`` switches it off."""

    def __init__(self, max_entries: int = 50_000) -> None:
        self._max_entries = max_entries
        self._runs: OrderedDict[Key, TestRun] = OrderedDict()
        self._in_flight: dict[Key, asyncio.Future[TestRun]] = {}
        self.num_hits = 0
        self.num_misses = 0

    async def get_or_run(self, key: Key, execute: Callable[[], Awaitable[TestRun]]) -> TestRun:
        """The cached run of ``key``, or the result of ``execute``.

        Raises:
            SandboxError: ``execute`` raised it; the next caller tries again.
        """
        if self._max_entries == 0:
            return await execute()
        if key in self._runs:
            self.num_hits += 1
            self._runs.move_to_end(key)
            return self._runs[key]
        if key in self._in_flight:
            self.num_hits += 1
            return await asyncio.shield(self._in_flight[key])
        return await self._execute(key, execute)

    async def _execute(self, key: Key, execute: Callable[[], Awaitable[TestRun]]) -> TestRun:
        self.num_misses += 1
        future: asyncio.Future[TestRun] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = future
        try:
            run = await execute()
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            future.exception()
            raise
        finally:
            del self._in_flight[key]
        future.set_result(run)
        self._runs[key] = run
        if len(self._runs) > self._max_entries:
            self._runs.popitem(last=False)
        return run
