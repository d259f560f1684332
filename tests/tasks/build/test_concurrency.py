from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from repairgym.tasks.build.concurrency import as_completed, ordered_map


@pytest.mark.asyncio
async def test_results_come_in_order_within_the_bound() -> None:
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running -= 1
        return number * number

    results = [pair async for pair in ordered_map(work, range(8), 3)]
    assert results == [(number, number * number) for number in range(8)]
    assert most == 3


@pytest.mark.asyncio
async def test_items_are_drawn_only_after_earlier_results_were_consumed() -> None:
    seen: list[int] = []
    drawn: list[tuple[int, int]] = []

    def items() -> object:
        for number in range(6):
            drawn.append((number, len(seen)))
            yield number

    async def work(number: int) -> int:
        return number

    async for number, _ in ordered_map(work, items(), 2):  # type: ignore[arg-type]
        seen.append(number)
    assert drawn == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


@pytest.mark.asyncio
async def test_leaving_the_loop_cancels_what_is_in_flight() -> None:
    cancelled: list[int] = []

    async def work(number: int) -> int:
        try:
            await asyncio.sleep(0 if number == 0 else 60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    async with aclosing(ordered_map(work, range(9), 3)) as results:
        async for _ in results:
            break
    assert sorted(cancelled) == [1, 2]


@pytest.mark.asyncio
async def test_results_come_as_they_end_and_leaving_cancels_the_rest() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    ended: list[int] = []

    async def work(number: int) -> int:
        try:
            await gates[number].wait()
        finally:
            ended.append(number)
        return number

    gates[2].set()
    async with aclosing(as_completed(work(number) for number in range(3))) as found:
        async for number in found:
            assert number == 2
            break
    assert sorted(ended) == [0, 1, 2]
