"""A bound on live sandboxes, whichever back end makes them.

Reads a back end; makes sandboxes that hold a place until they are closed. Guarantees: at most ``max_sandboxes``
made by `create` are alive, not counted those that an episode makes while it has one (`LeasedBackend.sharing`); closing
twice returns one place. Forks of a sandbox take no place: they share most of its memory, and their maker bounds their
number.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

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


_episode: ContextVar[_Place | None] = ContextVar("episode", default=None)


class LeasedBackend:
    """A back end whose `create` waits for a place."""

    def __init__(self, backend: SandboxBackend, max_sandboxes: int) -> None:
        self._backend = backend
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
        """Wait for a place and make a sandbox of the back end."""
        place = _episode.get() or _Place(self._free)
        await place.enter()
        try:
            sandbox = await self._backend.create(spec, snapshot=snapshot)
        except BaseException:
            place.leave()
            raise
        return cast(Sandbox, _Leased(sandbox, place))

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
