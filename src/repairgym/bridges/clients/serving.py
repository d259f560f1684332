"""The processes of servers whose clients lead episodes.

Guarantees: without a token a server listens on the loopback interface only; when it stops, running episodes are given
up and their sandboxes end.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from repairgym.bridges.clients import mcp, openenv
from repairgym.bridges.clients.episodes import open_server
from repairgym.bridges.clients.guard import ClientGuard
from repairgym.config.commands import ServeTasksConfig
from repairgym.errors import ConfigError, install_hint
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task
from repairgym.rollout.store import RunStore
from repairgym.serving.process import read_token, serve_app

_DRAIN_S = 1.0
_CLIENT_TIMEOUT_S = 60.0

Say = Callable[[str], None]


def require_websockets() -> None:
    """Raise `ConfigError`, with what to install, where no library speaks WebSockets."""
    if find_spec("websockets") is None:
        raise ConfigError(f"this server needs the package websockets: {install_hint('openenv')}")


async def serve_openenv(
    tasks: Sequence[Task], config: ServeTasksConfig, renderer: ChatRenderer, store: RunStore | None, say: Say
) -> None:
    """Serve ``tasks`` to OpenEnv's clients until SIGINT or SIGTERM."""
    token = read_token(config)
    async with open_server(tasks, config, renderer, "openenv", store) as server:
        await serve_app(
            ClientGuard(openenv.make_app(server), config.host, token),
            config.host,
            config.port,
            lambda url: say(f"serving {len(tasks)} tasks to OpenEnv clients at {url} (Ctrl-C ends it)"),
            drain_s=_DRAIN_S,
            client_timeout_s=_CLIENT_TIMEOUT_S,
            has_websockets=True,
        )


async def serve_mcp(
    tasks: Sequence[Task], config: ServeTasksConfig, renderer: ChatRenderer, store: RunStore | None, say: Say
) -> None:
    """Serve the tools on ``tasks`` by streamable HTTP until SIGINT or SIGTERM."""
    token = read_token(config)
    async with open_server(tasks, config, renderer, "mcp", store) as server, mcp.http_app(server) as app:
        await serve_app(
            ClientGuard(app, config.host, token),
            config.host,
            config.port,
            lambda url: say(f"serving {len(tasks)} tasks to MCP clients at {url}/mcp (Ctrl-C ends it)"),
            drain_s=_DRAIN_S,
            client_timeout_s=_CLIENT_TIMEOUT_S,
        )


async def serve_mcp_stdio(
    tasks: Sequence[Task], config: ServeTasksConfig, renderer: ChatRenderer, store: RunStore | None
) -> None:
    """Serve the tools on ``tasks`` over standard input and output until the client closes them."""
    async with open_server(tasks, config, renderer, "mcp", store) as server:
        await mcp.run_stdio(server)
