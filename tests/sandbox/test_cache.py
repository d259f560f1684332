"""The execution cache runs each key once, forgets failures and stays within its bound."""

import asyncio

import pytest

from repairgym.errors import SandboxError
from repairgym.records import TestRun
from repairgym.sandbox.cache import ExecutionCache

RUN = TestRun(results={}, exit_status=0)


class Counter:
    def __init__(self, error: Exception | None = None) -> None:
        self.num_calls = 0
        self.error = error

    async def __call__(self) -> TestRun:
        self.num_calls += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return RUN


@pytest.mark.asyncio
async def test_simultaneous_callers_share_one_run():
    cache, execute = ExecutionCache(), Counter()
    runs = await asyncio.gather(*(cache.get_or_run(("a",), execute) for _ in range(5)))
    assert runs == [RUN] * 5
    assert (execute.num_calls, cache.num_hits, cache.num_misses) == (1, 4, 1)


@pytest.mark.asyncio
async def test_failures_are_not_cached():
    cache, execute = ExecutionCache(), Counter(SandboxError("gone"))
    with pytest.raises(SandboxError):
        await cache.get_or_run(("a",), execute)
    assert await cache.get_or_run(("a",), Counter()) == RUN


@pytest.mark.asyncio
async def test_a_failure_is_of_the_caller_that_ran_it():
    cache, execute, fails = ExecutionCache(), Counter(), Counter(SandboxError("gone"))
    calls = [cache.get_or_run(("a",), each) for each in (fails, fails, execute, fails)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [SandboxError, SandboxError, TestRun, SandboxError]
    assert (fails.num_calls, execute.num_calls) == (3, 1)
    assert await cache.get_or_run(("a",), fails) == RUN


@pytest.mark.asyncio
async def test_those_that_waited_for_a_failed_run_run_side_by_side():
    """In an outage each of them may wait for a minute before its start."""
    cache, num_running, most = ExecutionCache(), 0, 0

    async def fail() -> TestRun:
        nonlocal num_running, most
        num_running, most = num_running + 1, max(most, num_running + 1)
        await asyncio.sleep(0.01)
        num_running -= 1
        raise SandboxError("gone")

    await asyncio.gather(*(cache.get_or_run(("a",), fail) for _ in range(8)), return_exceptions=True)
    assert most == 7


@pytest.mark.asyncio
async def test_bound_and_switch():
    cache, execute = ExecutionCache(max_entries=1), Counter()
    for key in ("a", "b", "a"):
        await cache.get_or_run((key,), execute)
    assert execute.num_calls == 3
    off = ExecutionCache(max_entries=0)
    await off.get_or_run(("a",), execute)
    await off.get_or_run(("a",), execute)
    assert execute.num_calls == 5


@pytest.mark.asyncio
async def test_a_cancelled_caller_does_not_end_another():
    cache, execute = ExecutionCache(), Counter()
    first = asyncio.create_task(cache.get_or_run(("a",), lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    others = [asyncio.create_task(cache.get_or_run(("a",), execute)) for _ in range(3)]
    await asyncio.sleep(0)
    others[0].cancel()
    first.cancel()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [asyncio.CancelledError] * 2
    assert results[2:] == [RUN, RUN]
    assert execute.num_calls == 1
