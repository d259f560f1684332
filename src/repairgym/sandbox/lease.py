"""A bound on live sandboxes, whichever back end makes them.

Reads a back end; makes sandboxes that hold a place until they are closed. Guarantees: at most ``max_sandboxes``
made by `create` are alive, not counted those that an episode makes while it has one (`LeasedBackend.sharing`); closing
twice returns one place; while starts fail, the next ones wait. Forks of a sandbox take no place: they share most of its
memory, and their maker bounds their number.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from repairgym.errors import SandboxContentError, SandboxError
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot


class _Place:
    """A place among those of a back end, for one sandbox or for all of an episode."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._taking = asyncio.Lock()
        self._num_sandboxes = 0

    async def enter(self) -> None:
        """Count one more sandbox; wait for a place when it is the first."""
        async with self._taking:
            if self._num_sandboxes == 0:
                await self._free.acquire()
            self._num_sandboxes += 1

    def leave(self) -> None:
        """Count one less; the last gives the place back."""
        self._num_sandboxes -= 1
        if self._num_sandboxes == 0:
            self._free.release()


_MAX_BACKOFF_S = 60.0


class _Backoff:
    """Waits before starts while starts fail: attempts that follow at once all meet the storm that the first one met."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._longest_s = 0.0
        self._failed_at_s = 0.0

    async def wait(self) -> float:
        """Wait, half of it at random, so that starts that failed together do not return together; return the time."""
        if self._longest_s:
            await asyncio.sleep(self._longest_s * random.uniform(0.5, 1.0))
        return time.monotonic()

    def fail(self, begun_at_s: float) -> None:
        """Note a failure; those of starts that ran at the same time count once."""
        if begun_at_s >= self._failed_at_s:
            self._longest_s = min(_MAX_BACKOFF_S, 2 * self._longest_s or self._first_s)
            self._failed_at_s = time.monotonic()

    def succeed(self) -> None:
        """Note a start that worked."""
        self._longest_s = 0.0


_episode: ContextVar[_Place | None] = ContextVar("episode", default=None)


class LeasedBackend:
    """A back end whose `create` waits for a place."""

    def __init__(self, backend: SandboxBackend, max_sandboxes: int, backoff_s: float = 0.0) -> None:
        """``backoff_s``: longest wait after a failed start; doubles with each failure in a row, up to a minute."""
        self._backend = backend
        self._backoff = _Backoff(backoff_s)
        self._free = asyncio.Semaphore(max_sandboxes)
        self.name = backend.name

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Give the sandboxes that are made in this context one place together.

        An episode that kept a place and waited for a second one could wait for others that do the same.
        """
        token = _episode.set(_Place(self._free))
        try:
            yield
        finally:
            _episode.reset(token)

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """Wait for a place, and longer while starts fail; make a sandbox of the back end."""
        place = _episode.get() or _Place(self._free)
        await place.enter()
        try:
            sandbox = await self._start(spec, snapshot)
        except BaseException:
            place.leave()
            raise
        return cast(Sandbox, _Leased(sandbox, place))

    async def _start(self, spec: SandboxSpec, snapshot: Snapshot | None) -> Sandbox:
        begun_at_s = await self._backoff.wait()
        try:
            sandbox = await self._backend.create(spec, snapshot=snapshot)
        except SandboxContentError:  # the fault of its files
            raise
        except SandboxError:
            self._backoff.fail(begun_at_s)
            raise
        self._backoff.succeed()
        return sandbox

    async def close(self) -> None:
        """Close the back end."""
        await self._backend.close()


class _Leased:
    """A sandbox whose `close` leaves its place."""

    def __init__(self, sandbox: Sandbox, place: _Place) -> None:
        self._sandbox = sandbox
        self._place: _Place | None = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        """Close the sandbox; safe to call twice."""
        place, self._place = self._place, None
        try:
            await self._sandbox.close()
        finally:
            if place is not None:
                place.leave()
