"""Closing a sandbox: a caller that is cancelled meanwhile leaves nothing behind."""

import asyncio
from typing import Any, cast

import pytest

from repairgym.errors import SandboxLostError
from repairgym.sandbox.guest_sandbox import GuestSandbox


class Connection:
    """Counts how often it is closed."""

    num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


@pytest.mark.asyncio
async def test_a_cancelled_close_goes_on_and_the_next_one_waits_for_it():
    gate, done = asyncio.Event(), []

    async def clean_up() -> None:
        await gate.wait()
        done.append(True)

    connection = Connection()
    sandbox = GuestSandbox("test", cast(Any, connection), True, clean_up)
    first = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    with pytest.raises(SandboxLostError, match="closed"):
        await sandbox.open_session()
    assert (first.done(), second.done(), done) == (True, False, [])
    gate.set()
    await second
    await sandbox.close()
    assert (done, connection.num_closed) == ([True], 1)
