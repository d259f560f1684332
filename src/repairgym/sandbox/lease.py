"""A bound on live sandboxes, whichever back end makes them.

Reads a back end; makes sandboxes that hold a place until they are closed. Guarantees: at most ``max_sandboxes``
made by `create` are alive; closing twice returns one place. Forks of a sandbox take no place: they share
most of its memory, and their maker bounds their number.
"""

import asyncio
from typing import Any, cast

from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot


class LeasedBackend:
    """A back end whose `create` waits for a place."""

    def __init__(self, backend: SandboxBackend, max_sandboxes: int) -> None:
        self._backend = backend
        self._places = asyncio.Semaphore(max_sandboxes)
        self.name = backend.name

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """Wait for a place and make a sandbox of the back end."""
        await self._places.acquire()
        try:
            sandbox = await self._backend.create(spec, snapshot=snapshot)
        except BaseException:
            self._places.release()
            raise
        return cast(Sandbox, _Leased(sandbox, self._places))

    async def close(self) -> None:
        """Close the back end."""
        await self._backend.close()


class _Leased:
    """A sandbox whose `close` returns its place."""

    def __init__(self, sandbox: Sandbox, places: asyncio.Semaphore) -> None:
        self._sandbox = sandbox
        self._places: asyncio.Semaphore | None = places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        """Close the sandbox; safe to call twice."""
        places, self._places = self._places, None
        try:
            await self._sandbox.close()
        finally:
            if places is not None:
                places.release()
