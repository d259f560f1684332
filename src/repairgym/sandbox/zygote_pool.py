"""Which resident processes of the namespace back end live: one spawner, and one zygote per (environment, tree).

Reads :class:`~repairgym.sandbox.base.SandboxSpec`, gives zygotes. Invariants: two requests for one zygote start one;
a zygote that something lives in is never ended to make room; one that died is replaced when it is next asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.zygotes import Spawner, Zygote

_Key = tuple[Path, Path, int, int]
"""Environment, tree, and the identity of the tree's folder: one made again at the same path is another tree."""


def _key(spec: SandboxSpec) -> _Key:
    try:
        status = spec.tree.stat()
    except OSError as error:
        raise InputError(f"got the tree {spec.tree}, expected a folder: {error}") from error
    return spec.environment, spec.tree, status.st_dev, status.st_ino


class ZygotePool:
    """The spawner and one zygote per (environment, tree), started when one is first asked for.

    Args:
        max_zygotes: Zygotes kept; the longest idle one without a live sandbox goes first.
    """

    def __init__(self, max_zygotes: int) -> None:
        self._max_zygotes = max_zygotes
        self._spawner: Spawner | None = None
        self._zygotes: dict[_Key, Zygote] = {}
        self._starting: dict[_Key, asyncio.Task[Zygote]] = {}

    async def get(self, spec: SandboxSpec, group_folders: list[str]) -> Zygote:
        """The zygote of ``spec``; a new spawner removes ``group_folders`` when it ends.

        Raises:
            InputError: no interpreter in the environment, or no such tree.
            SandboxUnavailableError: the kernel refused the namespaces or mounts.
            SandboxError: the interpreter of the environment did not start.
        """
        key = _key(spec)
        if self._spawner is not None and not self._spawner.is_alive:
            # The zygotes are about to die too, but may not have yet.
            for other in list(self._zygotes):
                self._forget(other)
        if key in self._zygotes:
            self._zygotes[key] = zygote = self._zygotes.pop(key)
            return zygote
        if key not in self._starting:
            self._starting[key] = asyncio.ensure_future(self._start(key, spec, group_folders))
        return await asyncio.shield(self._starting[key])

    async def _start(self, key: _Key, spec: SandboxSpec, group_folders: list[str]) -> Zygote:
        try:
            if self._spawner is not None and not self._spawner.is_alive:
                await self._spawner.close()
                self._spawner = None
            if self._spawner is None:
                self._spawner = Spawner(group_folders)
            self._evict()
            zygote = await self._spawner.start_zygote(spec)
            self._zygotes[key] = zygote
            return zygote
        finally:
            del self._starting[key]

    def _evict(self) -> None:
        idle = [key for key, zygote in self._zygotes.items() if zygote.num_live == 0]
        for key in idle[: max(0, len(self._zygotes) - self._max_zygotes + 1)]:
            self._forget(key)

    def forget(self, spec: SandboxSpec) -> None:
        """End the zygote of ``spec``; the next one asked for is new."""
        self._forget(_key(spec))

    def _forget(self, key: _Key) -> None:
        zygote = self._zygotes.pop(key, None)
        if zygote is not None:
            zygote.close()

    async def cancel(self) -> None:
        """Stop what is being started."""
        for task in list(self._starting.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await task

    async def close(self) -> None:
        """End every process; safe to call twice."""
        for key in list(self._zygotes):
            self._forget(key)
        if self._spawner is not None:
            await self._spawner.close()
            self._spawner = None
