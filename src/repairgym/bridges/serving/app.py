"""OpenAI's protocol over HTTP in front of one model.

Replies have OpenAI's form, with vLLM's field names for token ids. Guarantees: no more requests run and wait than the
configuration allows, others get status 429; every error is JSON with a code; an answer is no longer computed once its
client has disconnected; without a token the server listens on the loopback interface only; after the first signal
running requests may end within ``drain_s``, the second stops them.
"""

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from repairgym import __version__
from repairgym.bridges.serving.models import ModelReply, ServedModel
from repairgym.bridges.serving.requests import RequestError, SamplingRequest, read_chat_request, read_text_request
from repairgym.config.commands import ServeConfig
from repairgym.config.models import LOOPBACK
from repairgym.errors import ConfigError, InputError, RepairGymError

_CLIENT_GONE = 499
"""nginx's status for a client that closed the connection."""


class ModelServer:
    """The routes in front of one model; with a ``token`` for clients that send it only."""

    def __init__(self, model: ServedModel, name: str, config: ServeConfig, token: str = "") -> None:
        self._model = model
        self._name = name
        self._config = config
        self._token = token
        self._running = asyncio.Semaphore(config.max_concurrent)
        self._num_held = 0
        self._created = int(time.time())

    def app(self) -> Starlette:
        """Make the application."""
        routes = [
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/completions", self._guarded(self._complete), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
            Route("/version", lambda _: JSONResponse({"repairgym": __version__}), methods=["GET"]),
            Route("/health", lambda _: Response(), methods=["GET"]),
        ]
        handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {HTTPException: _not_found}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _guarded(self, handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._check_token(request)
                return JSONResponse(await handler(request))
            except RequestError as error:
                return _error(error.status, str(error), error.code)
            except RepairGymError as error:
                return _error(500, str(error), type(error).__name__)

        return guarded

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._token and not hmac.compare_digest(given.encode(), self._token.encode()):
            raise RequestError("wrong or missing token; send it as 'Authorization: Bearer TOKEN'", status=401)

    async def _chat(self, request: Request) -> dict[str, Any]:
        chat_request = read_chat_request(await self._body(request))
        reply = await self._run(request, chat_request.sampling, lambda: self._model.chat(chat_request))
        choice: dict[str, Any] = {"index": 0, "message": dict(reply.message), "finish_reason": _finish_reason(reply)}
        document = self._document("chat.completion", chat_request.sampling, reply, choice)
        if chat_request.sampling.has_log_probs:
            tokens = zip(reply.generation.token_ids, reply.generation.log_probs, strict=True)
            choice["logprobs"] = {"content": [self._token_log_prob(token_id, value) for token_id, value in tokens]}
        if chat_request.sampling.has_token_ids:
            document["prompt_token_ids"] = list(reply.prompt_ids)
        return document

    async def _complete(self, request: Request) -> dict[str, Any]:
        text_request = read_text_request(await self._body(request))
        reply = await self._run(request, text_request.sampling, lambda: self._model.complete(text_request))
        choice: dict[str, Any] = {"index": 0, "text": reply.text, "finish_reason": _finish_reason(reply)}
        if text_request.sampling.has_log_probs:
            tokens = [self._model.renderer.text([token_id]) for token_id in reply.generation.token_ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(reply.generation.log_probs)}
        if text_request.sampling.has_token_ids:
            choice["prompt_token_ids"] = list(reply.prompt_ids)
        return self._document("text_completion", text_request.sampling, reply, choice)

    async def _models(self, request: Request) -> dict[str, Any]:
        card = {"id": self._name, "object": "model", "created": self._created, "owned_by": "repairgym"}
        if self._model.max_len_tokens is not None:
            card["max_model_len"] = self._model.max_len_tokens
        return {"object": "list", "data": [card]}

    def _document(
        self, kind: str, sampling: SamplingRequest, reply: ModelReply, choice: dict[str, Any]
    ) -> dict[str, Any]:
        if sampling.has_token_ids:
            choice["token_ids"] = list(reply.generation.token_ids)
        num_prompt, num_completion = len(reply.prompt_ids), len(reply.generation.token_ids)
        return {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self._name,
            "choices": [choice],
            "usage": {
                "prompt_tokens": num_prompt,
                "completion_tokens": num_completion,
                "total_tokens": num_prompt + num_completion,
            },
            "policy_version": reply.generation.policy_version,
        }

    def _token_log_prob(self, token_id: int, log_prob: float) -> dict[str, Any]:
        text = self._model.renderer.text([token_id])
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}

    async def _body(self, request: Request) -> Mapping[str, Any]:
        """Read the request's JSON object; never holds more than the size limit of it."""
        too_large = RequestError(f"a body of more than {self._config.max_body_bytes} bytes", status=413)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._config.max_body_bytes:
                raise too_large
            parts.append(part)
        try:
            body = json.loads(b"".join(parts))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise RequestError("the body is not a JSON object")
        return body

    async def _run(
        self, request: Request, sampling: SamplingRequest, work: Callable[[], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Await ``work`` in its turn."""
        if sampling.model and sampling.model != self._name:
            raise RequestError(
                f"model {sampling.model!r} is not served here; {self._name!r} is", status=404, code="model_not_found"
            )
        async with self._admitted(), self._running:
            return await _unless_disconnected(request, work())

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        limit = self._config.max_concurrent + self._config.max_waiting
        if self._num_held >= limit:
            raise RequestError(f"{limit} requests run and wait already; try again later", status=429, code="queue_full")
        self._num_held += 1
        try:
            yield
        finally:
            self._num_held -= 1


def _finish_reason(reply: ModelReply) -> str:
    if reply.message.get("tool_calls"):
        return "tool_calls"
    return "stop" if reply.generation.is_stopped else "length"


async def _unless_disconnected(request: Request, work: Awaitable[ModelReply]) -> ModelReply:
    """Return the result of ``work``; cancels it when the client closes its connection."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError("the client has disconnected", status=_CLIENT_GONE, code="client_gone")
        return task.result()
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", "not_found")


def _error(status: int, message: str, code: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(content, status, headers={"Retry-After": "1"} if status == 429 else None)


def read_token(config: ServeConfig) -> str:
    """Return the token that clients must send; empty: none. `ConfigError` where other machines could connect so."""
    token = os.environ.get(config.token_env, "")
    if not token and config.host not in LOOPBACK:
        raise ConfigError(
            f"host={config.host!r} accepts other machines; set a token for them in {config.token_env}, "
            "or listen on 127.0.0.1"
        )
    return token


async def serve(model: ServedModel, name: str, config: ServeConfig, on_start: Callable[[str], None]) -> None:
    """Serve ``model`` as ``name`` until SIGINT or SIGTERM; ``on_start`` gets the base URL once clients can connect."""
    app = ModelServer(model, name, config, read_token(config)).app()
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(config.drain_s + 0.5),
    )
    server = _Server(settings, on_start)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn exits when it cannot listen
        raise InputError(f"cannot listen on {config.host}:{config.port}; take another port, 0 for any") from error
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """A server that reports when it listens; the caller handles its signals, so an ordered stop is no error."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.config.host, self.servers[0].sockets[0].getsockname()[1]
            self._on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
