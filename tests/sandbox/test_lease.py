"""A bound on live sandboxes: creation waits, closing gives the place back once, failures and second ones take none."""

import asyncio
import time
from pathlib import Path

import pytest

from repairgym.errors import SandboxContentError, SandboxError
from repairgym.records import TestRun
from repairgym.sandbox.base import SandboxSpec, Snapshot
from repairgym.sandbox.lease import LeasedBackend
from repairgym.testing.scripted import ScriptedBackend, ScriptedSandbox

SPEC = SandboxSpec(environment=Path("e"), tree=Path("t"), files={"a": "text"})


def make(num_failures: int = 0) -> LeasedBackend:
    return LeasedBackend(ScriptedBackend(lambda files, request: TestRun(results={}, exit_status=0), num_failures), 2)


@pytest.mark.asyncio
async def test_creation_waits_for_a_place():
    backend = make()
    first, second = await backend.create(SPEC), await backend.create(SPEC)
    waiting = asyncio.create_task(backend.create(SPEC))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.close()
    await first.close()  # gives no second place back
    third = await waiting
    blocked = asyncio.create_task(backend.create(SPEC))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert (third.backend, await second.read_file("a")) == ("scripted", b"text")
    await third.close()
    await (await blocked).close()


@pytest.mark.asyncio
async def test_a_failed_creation_takes_no_place():
    backend = make(num_failures=5)
    for _ in range(5):
        with pytest.raises(SandboxError):
            await backend.create(SPEC)
    assert [await backend.create(SPEC) for _ in range(2)]


@pytest.mark.asyncio
async def test_sandboxes_of_an_episode_share_a_place():
    backend = make()

    async def play() -> None:
        with backend.sharing():
            first = await backend.create(SPEC)
            await asyncio.sleep(0)  # all have begun
            second = await asyncio.create_task(backend.create(SPEC))
            await first.close()
            await second.close()

    await asyncio.wait_for(asyncio.gather(*(play() for _ in range(6))), 20.0)
    await asyncio.gather(backend.create(SPEC), backend.create(SPEC))  # both places are back
    blocked = asyncio.create_task(backend.create(SPEC))
    await asyncio.sleep(0)
    assert not blocked.done()
    blocked.cancel()


class StormyBackend(ScriptedBackend):
    """Fails from its first start on, for ``storm_s`` seconds."""

    def __init__(self, storm_s: float, error: type[SandboxError] = SandboxError) -> None:
        super().__init__(lambda files, request: TestRun(results={}, exit_status=0))
        self._storm_s, self._ends_at_s, self._error = storm_s, 0.0, error

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> ScriptedSandbox:
        self._ends_at_s = self._ends_at_s or time.monotonic() + self._storm_s
        await asyncio.sleep(0)
        if time.monotonic() < self._ends_at_s:
            raise self._error("too many starts")
        return await super().create(spec, snapshot=snapshot)


@pytest.mark.asyncio
async def test_starts_wait_longer_and_longer_while_starts_fail():
    backend = LeasedBackend(StormyBackend(storm_s=0.6), 2, backoff_s=0.4)
    for _ in range(2):
        with pytest.raises(SandboxError):
            await backend.create(SPEC)
    assert await backend.create(SPEC)  # 0.2 s and 0.4 s later, at least
    assert backend._backoff._longest_s == 0.0


@pytest.mark.asyncio
async def test_failures_that_began_together_count_once_and_those_of_files_not_at_all():
    backend = LeasedBackend(StormyBackend(storm_s=1000.0), 9, backoff_s=0.01)
    await asyncio.gather(*(backend.create(SPEC) for _ in range(9)), return_exceptions=True)
    assert backend._backoff._longest_s == 0.01
    backend = LeasedBackend(StormyBackend(1000.0, SandboxContentError), 2, backoff_s=1000.0)
    for _ in range(3):
        with pytest.raises(SandboxContentError):
            await backend.create(SPEC)
