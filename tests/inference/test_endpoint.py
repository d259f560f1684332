"""The limiter on a clock of its own, and what counts for it."""

from __future__ import annotations

import asyncio

import pytest

from repairgym.config.models import EndpointConfig
from repairgym.errors import ModelServerError
from repairgym.inference.endpoint import EndpointClient, RateLimiter
from repairgym.testing.servers import Fault, FaultyServer, url_of


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


@pytest.mark.asyncio
async def test_each_attempt_of_a_stream_counts_for_the_limit() -> None:
    server = FaultyServer([Fault.SERVER_ERROR])
    async with await server.serve() as listening:
        config = EndpointConfig(
            base_url=url_of(listening), model="tiny", max_attempts=3, backoff_s=0.001, requests_per_minute=2
        )
        async with EndpointClient(config) as client:
            with pytest.raises(TimeoutError):  # the third attempt waits for the next minute
                async with asyncio.timeout(2.0), client.stream("completions", {}, 10):
                    pass
            assert client.statistics.num_server_errors == len(server.requests) == 2
        unlimited = config.model_copy(update={"requests_per_minute": 0, "tokens_per_minute": 10})
        async with EndpointClient(unlimited) as client:
            with pytest.raises(ModelServerError, match="3 attempts failed"):  # what failed used no tokens
                async with client.stream("completions", {}, 10):
                    pass
