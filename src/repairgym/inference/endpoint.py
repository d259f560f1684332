"""A client of a model server over HTTP: JSON requests with retries, a rate limit, counters and costs.

Guarantees: only transient failures are retried; every attempt is counted by its result; no key is in an error, a
counter or a log; every failure is a `ModelServerError`; within any 60 seconds no more requests and tokens start than
the limits allow, as far as the callers' token counts are right.
"""

import asyncio
import json
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from repairgym.config.models import EndpointConfig
from repairgym.errors import ConfigError, ModelReplyError, ModelServerError, ServerRejectedError
from repairgym.inference.replies import Reply, Usage
from repairgym.inference.transport import TRANSIENT_STATUSES, AttemptError, EndpointStatistics, Response, Transport

_WINDOW_S = 60.0


@dataclass
class Reservation:
    """An admitted request and the tokens that it counts for."""

    start_s: float
    num_tokens: int


class RateLimiter:
    """Admits requests in their order."""

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

        A request above the whole limit waits until nothing else counts; then the server decides.
        """
        async with self._turn:
            while (wait_s := self._wait_s(num_tokens)) > 0:
                await self._sleep(wait_s)
            reservation = Reservation(self._clock(), num_tokens)
            self._recent.append(reservation)
            return reservation

    def _wait_s(self, num_tokens: int) -> float:
        """Seconds until the oldest reservation expires; 0 if there is room."""
        now = self._clock()
        while self._recent and now - self._recent[0].start_s >= _WINDOW_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        used = sum(reservation.num_tokens for reservation in self._recent)
        is_full = bool(self._max_requests) and len(self._recent) >= self._max_requests
        is_full |= bool(self._max_tokens) and used + num_tokens > self._max_tokens
        return max(0.001, self._recent[0].start_s + _WINDOW_S - now) if is_full else 0.0


ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True)
class Answer:
    """A reply, its cost and its waiting time."""

    reply: Reply
    cost_usd: float
    queue_s: float
    """Seconds before the attempt that succeeded: for a place, for the rate limit, and of attempts that failed."""


class EndpointClient:
    """A client of one server; any number of coroutines of one event loop may share it."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        key: str | None = None,
        seed: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare the client without connecting.

        Args:
            config: The server, its limits and retries.
            key: Instead of the value of `api_key_env`.
            seed: Of the random part of waits; None (the usual): different in every process.
            sleep: Waits between attempts.

        Raises:
            ConfigError: server or model are missing, there are several, or the key would be sent unencrypted.
        """
        config.require_server()
        config.require_one_server()
        key = os.environ.get(config.api_key_env, "") if key is None else key
        if key and not config.is_encrypted and not config.is_plain_http_allowed:
            raise ConfigError(
                f"{config.api_key_env} is set and {config.base_url} is not encrypted; use https://, unset the variable "
                "or set endpoint.is_plain_http_allowed=true"
            )
        self.config = config
        self.statistics = EndpointStatistics()
        self._random = random.Random(seed)
        self._sleep = sleep
        self._limiter = RateLimiter(config.requests_per_minute, config.tokens_per_minute)
        self._gate = asyncio.Semaphore(config.max_concurrent)
        self._transport = Transport(config, key, self.statistics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], Reply],
        num_tokens: int,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send ``body`` and return the reply as ``read`` parses it.

        Args:
            path: Below ``base_url``, e.g. ``chat/completions``, or of the server: ``/inference/v1/generate``.
            body: The request.
            read: Parses a reply; a `ModelReplyError` (unusable reply) leads to another attempt.
            num_tokens: Estimated tokens of prompt and reply, for the rate limit.
            headers: More headers of each attempt.

        Raises:
            ServerRejectedError: a permanent error.
            PromptTooLongError: the prompt does not fit.
            ServerDownError: the last attempt got no reply.
            ModelServerError: the last of `max_attempts` attempts failed, or the server wants too long a wait.
        """
        queued_at_s = time.monotonic()
        async with self._gate:
            reservation = await self._limiter.reserve(num_tokens)
            sent_at_s = time.monotonic()
            self.statistics.queue_s += sent_at_s - queued_at_s

            async def attempt(number: int) -> Reply:
                nonlocal reservation, sent_at_s
                if number > 1:
                    reservation = await self._limiter.reserve(num_tokens)
                    sent_at_s = time.monotonic()
                try:
                    text = await self._transport.post(path, body, headers)
                except AttemptError:
                    reservation.num_tokens = 0
                    raise
                if (answer := _object(text)) is None:
                    raise ModelReplyError(f"a reply that is no JSON object: {self._transport.shown(text)!r}")
                return read(answer)

            reply = await self._attempts(attempt)
            if reply.usage:
                reservation.num_tokens = reply.usage.num_prompt_tokens + reply.usage.num_reply_tokens
            return Answer(reply, self._bill(reply.usage), sent_at_s - queued_at_s)

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any], num_tokens: int
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """Send ``body`` and give the server's events as they come; raises as `ask`.

        Only what fails before the answer begins is tried again. At the end of the context the connection is closed,
        which stops a server that still samples.
        """
        async with self._gate:

            async def attempt(_: int) -> Response:
                reservation = await self._limiter.reserve(num_tokens)
                try:
                    return await self._transport.open_events(path, body)
                except AttemptError:
                    reservation.num_tokens = 0
                    raise

            response = await self._attempts(attempt)
            try:
                yield self._events(self._transport.read_events(response))
            finally:
                await response.aclose()

    async def _events(self, texts: AsyncIterator[str]) -> AsyncIterator[Mapping[str, Any]]:
        async for text in texts:
            event = _object(text)
            if event is not None and not event.get("error"):
                yield event
                continue
            shown, error = self._transport.shown(text), (event or {}).get("error")
            if isinstance(error, dict) and error.get("code") in (400, 413, 422):  # vLLM reads a grammar behind the head
                rejected = ServerRejectedError(f"{self.config.base_url} rejected the request: {shown}")
                rejected.status = error["code"]
                raise rejected
            raise ModelReplyError(f"an event of the stream is no part of an answer: {shown!r}")

    async def command(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send an idempotent command; return its reply, empty if that is no JSON object; raises as `ask`.

        Commands do not wait behind requests and have no limits and no costs.
        """

        async def attempt(_: int) -> Mapping[str, Any]:
            return _object(await self._transport.post(path, body or {})) or {}

        return await self._attempts(attempt)

    async def _attempts(self, attempt: Callable[[int], Awaitable[ReplyT]], *, is_counted: bool = True) -> ReplyT:
        """Return the result of the first successful one of at most `max_attempts` attempts."""
        for number in range(1, self.config.max_attempts + 1):
            self.statistics.num_attempts += is_counted
            try:
                return await attempt(number)
            except ModelReplyError as error:
                self.statistics.num_bad_replies += 1
                await self._wait_or_raise(number, error, None)
            except AttemptError as failure:
                await self._wait_or_raise(number, failure.error, failure.retry_after_s)
        raise AssertionError("the last attempt returns or raises")

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """GET a page below ``base_url`` (``page``) or of the server (``/page``); None if there is no such page.

        `ModelServerError`: the server is not ready (a proxy's 503, say) after `max_attempts` attempts.
        """
        status, text = await self._get(path)
        return _object(text) if status == 200 else None

    async def has_route(self, path: str) -> bool:
        """True if the server has ``path``, for any method; raises as `get`."""
        return (await self._get(path))[0] != 404

    async def is_healthy(self) -> bool:
        """True if ``/health`` answers with status 200; one attempt of at most `connect_timeout_s`."""
        try:
            return (await self._transport.get("/health", self.config.connect_timeout_s))[0] == 200
        except AttemptError:
            return False

    async def _get(self, path: str) -> tuple[int, str]:
        async def attempt(_: int) -> tuple[int, str]:
            status, text = await self._transport.get(path, self.config.timeout_s)
            if status in TRANSIENT_STATUSES:
                raise AttemptError(ModelServerError(f"status {status}: {self._transport.shown(text)}"))
            return status, text

        return await self._attempts(attempt, is_counted=False)

    def _bill(self, usage: Usage | None) -> float:
        """Count the tokens and return their cost; tokens that the server does not report cost nothing."""
        if usage is None:
            return 0.0
        counters = self.statistics
        counters.num_prompt_tokens += usage.num_prompt_tokens
        counters.num_cached_tokens += usage.num_cached_tokens
        counters.num_reply_tokens += usage.num_reply_tokens
        price = self.config.prices.get(self.config.model)
        cost_usd = (
            price.cost_usd(usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_reply_tokens) if price else 0.0
        )
        counters.cost_usd += cost_usd
        return cost_usd

    async def _wait_or_raise(self, attempt: int, error: ModelServerError, retry_after_s: float | None) -> None:
        """Wait for the next attempt, or raise: this was the last one, or the server asks for too long a wait."""
        place = f"{self.config.model} at {self.config.base_url}"
        if attempt == self.config.max_attempts:
            raise type(error)(f"{place}: {attempt} attempts failed, the last: {error}") from None
        server_wait_s = retry_after_s or 0.0
        if server_wait_s > self.config.max_retry_after_s:
            raise ModelServerError(
                f"{place} asks to wait {server_wait_s:.0f} s ({error}); endpoint.max_retry_after_s is "
                f"{self.config.max_retry_after_s:g}"
            ) from None
        longest = min(self.config.max_backoff_s, self.config.backoff_s * 2 ** (attempt - 1))
        # Half of the wait is random, so that requests rejected together do not return together.
        await self._sleep(max(server_wait_s, longest * self._random.uniform(0.5, 1.0)))


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
