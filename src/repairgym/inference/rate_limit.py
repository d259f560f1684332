"""Holding back requests that a provider would refuse: requests and tokens per minute.

Reads a clock; makes waits. Invariant: within any 60 seconds no more starts, and no more tokens, than the limits, as far
as the token counts that it was told are right.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_WINDOW_S = 60.0


@dataclass
class Reservation:
    """A request that was let through, and the tokens that it counts for."""

    start_s: float
    num_tokens: int


class RateLimiter:
    """Lets requests through in the order in which they asked."""

    def __init__(
        self,
        requests_per_minute: int,
        tokens_per_minute: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """0 is no limit."""
        self._max_requests = requests_per_minute
        self._max_tokens = tokens_per_minute
        self._clock = clock
        self._sleep = sleep
        self._recent: deque[Reservation] = deque()
        self._turn = asyncio.Lock()

    async def reserve(self, num_tokens: int) -> Reservation:
        """Wait for room for one request of about ``num_tokens``, prompt and reply.

        One that alone is more than the limit waits until nothing else counts and is let through: the server decides.
        """
        async with self._turn:
            while (wait_s := self._wait_s(num_tokens)) > 0:
                await self._sleep(wait_s)
            reservation = Reservation(self._clock(), num_tokens)
            self._recent.append(reservation)
            return reservation

    def _wait_s(self, num_tokens: int) -> float:
        """Seconds until the oldest reservation no longer counts, if there is no room before; 0 when there is room."""
        now = self._clock()
        while self._recent and now - self._recent[0].start_s >= _WINDOW_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        used = sum(reservation.num_tokens for reservation in self._recent)
        is_full = bool(self._max_requests) and len(self._recent) >= self._max_requests
        is_full |= bool(self._max_tokens) and used + num_tokens > self._max_tokens
        return max(0.001, self._recent[0].start_s + _WINDOW_S - now) if is_full else 0.0
