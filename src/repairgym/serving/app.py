"""The routes of the server: protocols of several providers in front of one model.

Guarantees: no more answers are sampled and wait than the configuration allows, others get status 429; every error is
JSON in the form of the dialect that was asked; an answer is no longer sampled once its client has disconnected.
"""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from repairgym import __version__
from repairgym.config.commands import ServeConfig
from repairgym.errors import RepairGymError
from repairgym.serving.access import check_access
from repairgym.serving.dialects.base import Dialect, Exchange, encode_json
from repairgym.serving.dialects.chat import ChatDialect
from repairgym.serving.dialects.completions import CompletionsDialect
from repairgym.serving.dialects.messages import MessagesDialect
from repairgym.serving.dialects.responses import ResponsesDialect
from repairgym.serving.models import ServedModel
from repairgym.serving.records import Event, ModelReply, RequestError, check_exact
from repairgym.serving.sampling import Queue, sample, unless_disconnected
from repairgym.serving.streams import EventStream

_MESSAGES = MessagesDialect()
DIALECTS: tuple[Dialect, ...] = (ChatDialect(), CompletionsDialect(), ResponsesDialect(), _MESSAGES)
_LOG = logging.getLogger(__name__)
_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
"""Half of a pair may be alone; JSON allows that, UTF-8 and tokenizers do not."""


_MAX_BODIES = 4
"""Bodies of the largest size that are held at one time; more clients may send smaller ones."""
_OTHER_PATHS = (
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/images/{rest:path}",
    "/v1/audio/{rest:path}",
)


class ModelServer:
    """The routes in front of one model; with a ``token`` for clients that send it only."""

    def __init__(
        self,
        model: ServedModel,
        name: str,
        config: ServeConfig,
        token: str = "",
        override: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        """Serve ``model`` as ``name`` (empty: under any name); ``override`` changes bodies before they are read."""
        self._model = model
        self._name = name
        self._config = config
        self._token = token
        self._override = override
        self._queue = Queue(config.max_concurrent, config.max_waiting)
        self._created = int(time.time())
        self._num_body_bytes = 0

    def app(self) -> Starlette:
        """Make the application."""
        routes = [
            *(
                Route(dialect.path, self._guarded(dialect, self._answer(dialect)), methods=["POST"])
                for dialect in DIALECTS
            ),
            Route(f"{_MESSAGES.path}/count_tokens", self._guarded(_MESSAGES, self._count_tokens), methods=["POST"]),
            Route("/v1/models", self._guarded(DIALECTS[0], self._models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guarded(DIALECTS[0], self._model_card), methods=["GET"]),
            *(Route(path, self._guarded(DIALECTS[0], _reject_path), methods=["POST"]) for path in _OTHER_PATHS),
            Route("/version", lambda _: JSONResponse({"repairgym": __version__}), methods=["GET"]),
            Route("/health", lambda _: Response(), methods=["GET"]),
        ]
        handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {HTTPException: _not_found}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _guarded(
        self, dialect: Dialect, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                check_access(request.headers, self._config.host, self._token)
                return await handler(request)
            except RequestError as error:
                return _error(dialect, error)
            except RepairGymError as error:
                return _error(dialect, RequestError(str(error), status=500, code=type(error).__name__))
            except Exception:
                _LOG.exception("%s failed", request.url.path)
                return _error(dialect, RequestError("the server failed; its log says why", status=500, code="failed"))

        return guarded

    def _answer(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = await self._body(request)
            asked = dialect.read(body)
            if self._config.is_strict:
                check_exact(asked)
            self._check_model(asked.sampling.model)
            prompts = self._model.prompts(asked)
            spell = self._model.renderer.text
            exchange = Exchange(
                asked, uuid.uuid4().hex, int(time.time()), self._name or asked.sampling.model, prompts, spell, body
            )
            events = sample(self._model, asked, prompts, self._queue)
            if not asked.sampling.is_stream:
                replies = await unless_disconnected(request.receive, _replies(events))
                return _json(dialect.document(exchange, replies))
            # Failures up to here have a status of their own.
            first = await unless_disconnected(request.receive, anext(events))
            return EventStream(dialect, exchange, first, events, self._config.client_timeout_s)

        return answer

    def _check_model(self, name: str) -> None:
        if name and self._name and name not in (self._name, *self._config.model_aliases):
            raise RequestError(
                f"model {name[:200]!r} is not served here; {self._name!r} is", status=404, code="model_not_found"
            )

    async def _count_tokens(self, request: Request) -> Response:
        asked = _MESSAGES.read_prompt(await self._body(request))
        self._check_model(asked.sampling.model)
        return _json({"input_tokens": self._model.count(asked)})

    async def _models(self, request: Request) -> Response:
        ends = {"first_id": self._name, "last_id": self._name, "has_more": False}
        return _json({"object": "list", "data": [self._card()], **ends})

    async def _model_card(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return _json(self._card())

    def _card(self) -> dict[str, Any]:
        created_at = datetime.fromtimestamp(self._created, UTC).isoformat()
        card = {"id": self._name, "object": "model", "created": self._created, "owned_by": "repairgym"}
        # Fields of Anthropic's form; the two have none in common that differ.
        card |= {"type": "model", "display_name": self._name, "created_at": created_at}
        if self._model.max_len_tokens is not None:
            card["max_model_len"] = self._model.max_len_tokens
        return card

    async def _body(self, request: Request) -> Mapping[str, Any]:
        """Read the request's JSON object; never holds more than the size limit of it."""
        too_large = RequestError(f"a body of more than {self._config.max_body_bytes} bytes", status=413)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._config.max_body_bytes:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._config.client_timeout_s):
                async for part in request.stream():
                    size += len(part)
                    self._num_body_bytes += len(part)
                    if size > self._config.max_body_bytes:
                        raise too_large
                    if self._num_body_bytes > _MAX_BODIES * self._config.max_body_bytes:
                        raise RequestError("too many large bodies at one time; try again later", status=429)
                    parts.append(part)
            body = read_body(b"".join(parts))
        except TimeoutError:
            raise RequestError("the body did not arrive in time", status=408) from None
        finally:
            self._num_body_bytes -= size
        return self._override(body) if self._override else body


def read_body(content: bytes) -> Mapping[str, Any]:
    """Return the JSON object in ``content``; `RequestError` where there is none."""
    try:
        body = json.loads(content, parse_constant=_reject_constant)
        if _SURROGATE.search(content):
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


async def _replies(events: AsyncGenerator[Event, None]) -> list[ModelReply]:
    async with aclosing(events):
        replies = [event async for event in events if isinstance(event, ModelReply)]
    return sorted(replies, key=lambda reply: reply.number)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(content), status, headers, "application/json")


async def _reject_path(request: Request) -> Response:
    raise RequestError(
        f"{request.url.path.removeprefix('/v1/')}: this server's model makes text only; ask another server",
        status=404,
        code="unsupported_endpoint",
    )


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _error(DIALECTS[0], RequestError(message, status=error.status_code, code="not_found"))


def _error(dialect: Dialect, error: RequestError) -> Response:
    return _json(dialect.error(error), error.status, {"Retry-After": "1"} if error.status == 429 else None)
