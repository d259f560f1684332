"""The limiter on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from repairgym.inference.endpoint import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now_s += seconds


async def starts(num: int, num_tokens: int, *, requests: int = 0, tokens: int = 0) -> list[float]:
    clock = Clock()
    limiter = RateLimiter(requests, tokens, clock=clock, sleep=clock.sleep)
    results = await asyncio.gather(*(limiter.reserve(num_tokens) for _ in range(num)))
    return [reservation.start_s for reservation in results]


@pytest.mark.asyncio
async def test_requests_per_minute() -> None:
    assert await starts(7, 1, requests=3) == [0.0] * 3 + [60.0] * 3 + [120.0]


@pytest.mark.asyncio
async def test_tokens_per_minute() -> None:
    assert await starts(4, 400, tokens=1000) == [0.0, 0.0, 60.0, 60.0]
    assert await starts(2, 5000, tokens=1000) == [0.0, 60.0]  # larger than the limit: alone, the server decides


@pytest.mark.asyncio
async def test_no_limit_and_corrected_counts() -> None:
    assert await starts(50, 10**6) == [0.0] * 50
    clock = Clock()
    limiter = RateLimiter(0, 1000, clock=clock, sleep=clock.sleep)
    first = await limiter.reserve(1000)
    first.num_tokens = 100
    assert (await limiter.reserve(900)).start_s == 0.0
