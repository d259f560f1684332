"""One attempt at a model server: a request, and a reply or a typed error.

Guarantees: a transient failure is an `AttemptError`, a permanent one a `ServerRejectedError`; every failed POST is
counted by its kind; no key is in an error.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import httpx2

from repairgym.config.models import EndpointConfig
from repairgym.errors import ModelServerError, PromptTooLongError, ServerDownError, ServerRejectedError

Response = httpx2.Response
"""An answer of a server, whose events are still to come."""
TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_SHOWN_CHARS = 300
_SIGNS_OF_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "max_model_len",
    "exceeds the available context",
)
_SIGN_OF_SPENT_QUOTA = "insufficient_quota"
_HIDDEN = "[key]"
_LINE_END = re.compile(rb"[\r\n]")
_KEEP_ALIVE_S = 2.0
"""Idle connections are closed here before the server does: uvicorn, and so vLLM, closes them after 5 s, and a request
sent at that moment is lost."""


@dataclass
class EndpointStatistics:
    """Counters of a client. Each attempt is in ``num_attempts`` and, if it failed, in one more."""

    num_attempts: int = 0
    num_rate_limited: int = 0
    """Status 429."""
    num_server_errors: int = 0
    """Other transient statuses."""
    num_refused: int = 0
    """Permanent errors, such as prompts that are too long."""
    num_timeouts: int = 0
    num_disconnects: int = 0
    """No connection, or a connection that ended before the reply."""
    num_bad_replies: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Part of the prompt tokens."""
    num_reply_tokens: int = 0
    cost_usd: float = 0.0
    queue_s: float = 0.0
    """Total seconds that requests waited here for a place or for the rate limit."""

    def as_metrics(self, prefix: str = "endpoint") -> dict[str, float]:
        """``<prefix>/<counter>`` -> value."""
        return {f"{prefix}/{name}": float(value) for name, value in asdict(self).items()}


class AttemptError(Exception):
    """A transient failure of one attempt."""

    def __init__(self, error: ModelServerError, retry_after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


class Transport:
    """Connections to one server."""

    def __init__(self, config: EndpointConfig, key: str, statistics: EndpointStatistics) -> None:
        """Prepare the client without connecting; ``key`` is sent with every request, never shown; empty: none."""
        self._config = config
        self._key = key
        self._statistics = statistics
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(config.timeout_s, connect=config.connect_timeout_s, pool=None),
            limits=httpx2.Limits(
                max_connections=None,  # callers bound their requests; commands do not wait behind them
                max_keepalive_connections=config.max_concurrent,
                keepalive_expiry=_KEEP_ALIVE_S,
            ),
            trust_env=not config.is_local,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> str:
        """Send a request; return the text of a reply of status 200.

        Raises:
            AttemptError: no reply, or a transient status.
            PromptTooLongError: the prompt does not fit.
            ServerRejectedError: a permanent error.
        """
        try:
            response = await self._exchange("POST", path, self._config.timeout_s, body, headers)
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise AttemptError(self._lost(error)) from None
        if response.status_code != 200:
            self._raise_for_status(response)
        return response.text

    async def open_events(self, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Send a request for server-sent events; return the open answer of status 200; raises as `post`."""
        request = self._http.build_request("POST", self._url(path), json=dict(body))
        try:
            response = await self._http.send(request, stream=True)
            if response.status_code != 200:
                await response.aread()
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise AttemptError(self._lost(error)) from None
        if response.status_code != 200:
            self._raise_for_status(response)
        return response

    async def read_events(self, response: httpx2.Response) -> AsyncIterator[str]:
        """Yield the data of each event up to ``[DONE]``; `ServerDownError` where the answer ends before it."""
        try:
            async for line in _lines(response.aiter_bytes()):
                kind, _, data = line.partition(":")
                if kind == "data" and data.strip() == "[DONE]":
                    return
                if kind == "data":
                    yield data.strip()
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._lost(error) from None
        self._statistics.num_disconnects += 1
        raise ServerDownError("the stream ended before its last event")

    def _lost(self, error: Exception) -> ServerDownError:
        """Count and describe an exchange without a whole answer."""
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            self._statistics.num_timeouts += 1
            return ServerDownError(f"no reply within {self._config.timeout_s:g} s")
        self._statistics.num_disconnects += 1
        return ServerDownError(f"the connection failed ({self._hide(_name(error))})")

    async def get(self, path: str, timeout_s: float) -> tuple[int, str]:
        """Return status and text of a reply of any status, uncounted; `AttemptError` if no server answers."""
        try:
            response = await self._exchange("GET", path, timeout_s)
        except (TimeoutError, httpx2.HTTPError) as error:
            raise AttemptError(ServerDownError(f"no answer ({_name(error)}); is the server up?")) from None
        return response.status_code, response.text

    def shown(self, text: str) -> str:
        """Make ``text`` fit for an error message: one line, short, without the key."""
        return self._hide(" ".join(text.split()))[:_MAX_SHOWN_CHARS]

    async def _exchange(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Exchange a request for a reply of any status; the timeout covers the whole exchange, not each read."""
        async with asyncio.timeout(timeout_s):
            content = None if body is None else dict(body)
            return await self._http.request(method, self._url(path), json=content, headers=headers)

    def _url(self, path: str) -> httpx2.URL:
        return httpx2.URL(self._config.base_url.rstrip("/") + "/").join(path)

    def _raise_for_status(self, response: httpx2.Response) -> NoReturn:
        status, text = response.status_code, self.shown(response.text)
        if status in TRANSIENT_STATUSES and _SIGN_OF_SPENT_QUOTA not in response.text:
            is_limit = status == 429
            self._statistics.num_rate_limited += is_limit
            self._statistics.num_server_errors += not is_limit
            raise AttemptError(ModelServerError(f"status {status}: {text}"), _retry_after_s(response.headers))
        self._statistics.num_refused += 1
        if status in (400, 413, 422) and any(sign in response.text for sign in _SIGNS_OF_TOO_LONG):
            raise PromptTooLongError(f"{self._config.model} rejected the prompt as too long: {text}")
        rejected = ServerRejectedError(
            f"{self._config.base_url} rejected the request with status {status}: {text}; {self._remedy(status)}"
        )
        rejected.status = status
        raise rejected

    def _remedy(self, status: int) -> str:
        match status:
            case 401 | 403:
                return f"put a valid key into {self._config.api_key_env}"
            case 404:
                return f"check endpoint.base_url and endpoint.model={self._config.model!r}"
            case _:
                return "change the request (endpoint.*) and run the command again"

    def _hide(self, text: str) -> str:
        return text.replace(self._key, _HIDDEN) if self._key else text


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield lines as server-sent events end them; separators of Unicode within a text end none."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = _LINE_END.split(rest + chunk)
        for line in lines:
            yield line.decode("utf-8", "replace")
    yield rest.decode("utf-8", "replace")


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After`` (a number or a date); None if it is missing or unreadable."""
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
