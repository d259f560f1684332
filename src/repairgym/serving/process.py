"""The server's process: where it listens, who may connect, and how it stops.

Guarantees: without a token the server listens on the loopback interface only; no connection stays that neither sends
nor reads for ``client_timeout_s``; after the first signal running requests may end within ``drain_s``, the second stops
them.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from repairgym.config.commands import ServeConfig, ServeTasksConfig
from repairgym.config.models import LOOPBACK
from repairgym.errors import ConfigError, InputError
from repairgym.serving.app import ModelServer
from repairgym.serving.models import ServedModel


def read_token(config: ServeConfig | ServeTasksConfig) -> str:
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
    await serve_app(
        app,
        config.host,
        config.port,
        lambda url: on_start(f"{url}/v1"),
        drain_s=config.drain_s,
        client_timeout_s=config.client_timeout_s,
    )


async def serve_app(
    app: ASGIApp,
    host: str,
    port: int,
    on_start: Callable[[str], None],
    *,
    drain_s: float,
    client_timeout_s: float,
    has_websockets: bool = False,
) -> None:
    """Serve ``app`` until SIGINT or SIGTERM; `InputError` where nothing can listen on this address."""
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="h11",  # whose connections `_drop_idle` reads
        ws="websockets-sansio" if has_websockets else "none",
        timeout_graceful_shutdown=int(drain_s + 0.5),
    )
    server = _Server(settings, on_start, client_timeout_s)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn exits when it cannot listen
        raise InputError(f"cannot listen on {host}:{port}; take another port, 0 for any") from error
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """A server that reports when it listens; the caller handles its signals, so an ordered stop is no error."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[str], None], timeout_s: float) -> None:
        super().__init__(config)
        self._on_start = on_start
        self._timeout_s = timeout_s
        self._idle_since: dict[Any, float] = {}

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.config.host, self.servers[0].sockets[0].getsockname()[1]
            self._on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._drop_idle(time.monotonic())
        return await super().on_tick(counter)

    def _drop_idle(self, now: float) -> None:
        """Drop connections that send no whole head of a request, or do not read what is left of an answer."""
        # Connections of WebSockets have no cycle: their sessions have limits of their own.
        connections = [each for each in self.server_state.connections if isinstance(each, H11Protocol)]
        idle = {
            connection
            for connection in connections
            if connection.transport.is_closing()
            or (
                # The cycle of the last answer stays until the next request's head is whole.
                (connection.cycle is None or connection.cycle.response_complete)
                and connection.timeout_keep_alive_task is None
            )
        }
        self._idle_since = {connection: self._idle_since.get(connection, now) for connection in idle}
        for connection, since in self._idle_since.items():
            if now - since > self._timeout_s:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
