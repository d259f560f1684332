"""A bound on live sandboxes: creation waits, closing gives the place back once, failures and second ones take none."""

import asyncio
from pathlib import Path

import pytest

from repairgym.errors import SandboxError
from repairgym.records import TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.lease import LeasedBackend
from repairgym.testing.scripted import ScriptedBackend

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
