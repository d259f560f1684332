"""A model server over HTTP: one JSON request, one JSON reply, whatever happens in between.

Reads an `EndpointConfig` and a key (most often of the environment); makes replies. Invariants: a request is tried again
for trouble that may pass and for nothing else; every attempt is counted by what came of it; no key is in an error, a
counter or a log; whatever goes wrong is a `ModelServerError`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar

import httpx2

from mendwright.config.endpoint import EndpointConfig
from mendwright.errors import (
    ConfigError,
    ModelReplyError,
    ModelServerError,
    PromptTooLongError,
    ServerDownError,
    ServerRefusedError,
)
from mendwright.models.rate_limit import RateLimiter
from mendwright.models.replies import Reply, Usage

_MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_SHOWN_CHARS = 300
_SIGNS_OF_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "max_model_len",
    "exceeds the available context",
)
_SIGN_OF_EMPTY_PURSE = "insufficient_quota"
_HIDDEN = "[key]"
_KEEP_ALIVE_S = 2.0
"""Idle connections are closed here before the server does it: uvicorn, and so vLLM, waits for 5 s, and a request that
crosses its close is lost."""
ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True)
class Answer:
    """A reply and what it took."""

    reply: Reply
    cost_usd: float
    queue_s: float
    """Seconds for which the request waited here before it was first sent: for a place, and for the rate limit."""


@dataclass
class EndpointStatistics:
    """Counters since the client was made. Each attempt is in ``num_attempts`` and, when it failed, in one more."""

    num_attempts: int = 0
    num_rate_limited: int = 0
    """Status 429."""
    num_server_errors: int = 0
    """Other statuses that may pass."""
    num_refused: int = 0
    """Statuses that will not pass, too long prompts among them."""
    num_timeouts: int = 0
    num_disconnects: int = 0
    """No connection, or one that ended before the reply did."""
    num_bad_replies: int = 0
    """Replies that cannot be used."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Part of the prompt tokens."""
    num_reply_tokens: int = 0
    cost_usd: float = 0.0
    queue_s: float = 0.0
    """Seconds for which requests waited here for a place or for the rate limit, added up."""

    def as_metrics(self) -> dict[str, float]:
        """``endpoint/<counter>`` -> value."""
        return {f"endpoint/{name}": float(value) for name, value in asdict(self).items()}


class EndpointClient:
    """Asks one server; any number of coroutines of one event loop may share it."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        key: str | None = None,
        seed: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Connect to nothing yet.

        Args:
            config: The server, its limits and how trouble is met.
            key: Instead of the value of `api_key_env`.
            seed: Of the random part of waits; None: different in every process, as it should be.
            sleep: What waits between attempts.

        Raises:
            ConfigError: server or model are missing, there are several, or the key would travel in the open.
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
        self._key = key
        self._random = random.Random(seed)
        self._sleep = sleep
        self._limiter = RateLimiter(config.requests_per_minute, config.tokens_per_minute)
        self._gate = asyncio.Semaphore(config.max_concurrent)
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(config.timeout_s, connect=config.connect_timeout_s, pool=None),
            limits=httpx2.Limits(
                max_connections=None,  # the gate bounds requests; orders do not wait behind them
                max_keepalive_connections=config.max_concurrent,
                keepalive_expiry=_KEEP_ALIVE_S,
            ),
            trust_env=not config.is_local,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], Reply],
        num_tokens: int,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """What ``read`` makes of the reply to ``body``.

        Args:
            path: Below ``base_url``, e.g. ``chat/completions``, or beside it: ``/inference/v1/generate``.
            body: The request.
            read: Checks a reply; raises `ModelReplyError` for one that cannot be used, which is then asked for again.
            num_tokens: About how many tokens prompt and reply will have, for the rate limit.
            headers: More headers of each attempt.

        Raises:
            ServerRefusedError: the request will not be taken, also not later.
            PromptTooLongError: the prompt does not fit.
            ServerDownError: the last attempt got no reply.
            ModelServerError: the last of `max_attempts` attempts failed, or the server wants too long a wait.
        """
        queued_at_s = time.monotonic()
        async with self._gate:
            reservation = await self._limiter.reserve(num_tokens)
            queue_s = time.monotonic() - queued_at_s
            self.statistics.queue_s += queue_s

            async def attempt(number: int) -> Reply:
                nonlocal reservation
                if number > 1:
                    reservation = await self._limiter.reserve(num_tokens)
                try:
                    return read(_json(await self._post(path, body, headers), self._shown))
                except _MayPass:
                    reservation.num_tokens = 0
                    raise

            reply = await self._attempts(attempt)
            if reply.usage:
                reservation.num_tokens = reply.usage.num_prompt_tokens + reply.usage.num_reply_tokens
            return Answer(reply, self._bill(reply.usage), queue_s)

    async def command(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The reply to an order that may be given twice; empty where it is no JSON object.

        It does not wait behind requests, is limited by nothing and costs nothing.

        Raises:
            ServerRefusedError: there is no such route, or the order will not be taken.
            ModelServerError: the last of `max_attempts` attempts failed.
        """

        async def attempt(_: int) -> Mapping[str, Any]:
            return _object(await self._post(path, body or {})) or {}

        return await self._attempts(attempt)

    async def _attempts(self, attempt: Callable[[int], Awaitable[ReplyT]]) -> ReplyT:
        """What the first good one of at most `max_attempts` attempts gives."""
        for number in range(1, self.config.max_attempts + 1):
            self.statistics.num_attempts += 1
            try:
                return await attempt(number)
            except ModelReplyError as error:
                self.statistics.num_bad_replies += 1
                await self._rest(number, error, None)
            except _MayPass as trouble:
                await self._rest(number, trouble.error, trouble.retry_after_s)
        raise AssertionError("the last attempt returns or raises")

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """The reply to a GET below ``base_url`` (``page``) or beside it (``/page``); None where there is no such page.

        Raises:
            ServerDownError: no server answers.
        """
        response = await self._get(path)
        return _object(response.text) if response.status_code == 200 else None

    async def has_route(self, path: str) -> bool:
        """Whether the server knows ``path``, whatever method it takes.

        Raises:
            ServerDownError: no server answers.
        """
        return (await self._get(path)).status_code != 404

    async def is_healthy(self) -> bool:
        """Whether ``/health`` answers that all is well; asked once, for at most `connect_timeout_s`: it may be dead."""
        try:
            return (await self._exchange("GET", "/health", self.config.connect_timeout_s)).status_code == 200
        except (TimeoutError, httpx2.HTTPError):
            return False

    async def _get(self, path: str) -> httpx2.Response:
        for number in range(1, self.config.max_attempts + 1):
            try:
                return await self._exchange("GET", path, self.config.timeout_s)
            except (TimeoutError, httpx2.HTTPError) as error:
                await self._rest(number, ServerDownError(f"no answer ({_name(error)}); is the server up?"), None)
        raise AssertionError("the last attempt returns or raises")

    async def _exchange(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """A reply whatever its status.

        The whole exchange has the bound, not each read of it: a server that drips is as dead as one that hangs.
        """
        async with asyncio.timeout(timeout_s):
            content = None if body is None else dict(body)
            return await self._http.request(method, self._url(path), json=content, headers=headers)

    def _url(self, path: str) -> httpx2.URL:
        return httpx2.URL(self.config.base_url.rstrip("/") + "/").join(path)

    def _bill(self, usage: Usage | None) -> float:
        """Count the tokens; returns what they cost. What the server does not count costs nothing."""
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

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> str:
        """The text of the reply."""
        try:
            response = await self._exchange("POST", path, self.config.timeout_s, body, headers)
        except (TimeoutError, httpx2.TimeoutException):
            self.statistics.num_timeouts += 1
            raise _MayPass(ServerDownError(f"no reply within {self.config.timeout_s:g} s")) from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            self.statistics.num_disconnects += 1
            raise _MayPass(ServerDownError(f"the connection failed ({self._hide(_name(error))})")) from None
        if response.status_code != 200:
            self._refuse(response)
        return response.text

    def _refuse(self, response: httpx2.Response) -> None:
        status, text = response.status_code, self._shown(response.text)
        if status in _MAY_PASS and _SIGN_OF_EMPTY_PURSE not in response.text:
            is_limit = status == 429
            self.statistics.num_rate_limited += is_limit
            self.statistics.num_server_errors += not is_limit
            raise _MayPass(ModelServerError(f"status {status}: {text}"), _retry_after_s(response.headers))
        self.statistics.num_refused += 1
        if status in (400, 413, 422) and any(sign in response.text for sign in _SIGNS_OF_TOO_LONG):
            raise PromptTooLongError(f"{self.config.model} refused the prompt as too long: {text}")
        raise ServerRefusedError(
            f"{self.config.base_url} refused the request with status {status}: {text}; {self._remedy(status)}"
        )

    def _remedy(self, status: int) -> str:
        match status:
            case 401 | 403:
                return f"put a valid key into {self.config.api_key_env}"
            case 404:
                return f"check endpoint.base_url and endpoint.model={self.config.model!r}"
            case _:
                return "change the request (endpoint.*) and run the command again"

    async def _rest(self, attempt: int, error: ModelServerError, retry_after_s: float | None) -> None:
        """Wait for the next attempt.

        Raises:
            ModelServerError: there is none.
        """
        place = f"{self.config.model} at {self.config.base_url}"
        if attempt == self.config.max_attempts:
            raise type(error)(f"{place}: {attempt} attempts failed, the last: {error}") from None
        asked_s = retry_after_s or 0.0
        if asked_s > self.config.max_retry_after_s:
            raise ModelServerError(
                f"{place} asks to wait {asked_s:.0f} s ({error}); endpoint.max_retry_after_s is "
                f"{self.config.max_retry_after_s:g}"
            ) from None
        longest = min(self.config.max_backoff_s, self.config.backoff_s * 2 ** (attempt - 1))
        # Half of the wait is random, so that those who were refused together do not come back together.
        await self._sleep(max(asked_s, longest * self._random.uniform(0.5, 1.0)))

    def _hide(self, text: str) -> str:
        return text.replace(self._key, _HIDDEN) if self._key else text

    def _shown(self, text: str) -> str:
        return self._hide(" ".join(text.split()))[:_MAX_SHOWN_CHARS]


class _MayPass(Exception):
    """Trouble of one attempt."""

    def __init__(self, error: ModelServerError, retry_after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


def _json(text: str, shown: Callable[[str], str]) -> Mapping[str, Any]:
    reply = _object(text)
    if reply is None:
        raise ModelReplyError(f"a reply that is no JSON object: {shown(text)!r}")
    return reply


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After`` (a number, or a date); None without one that can be read."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
