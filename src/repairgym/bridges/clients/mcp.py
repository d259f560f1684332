"""The tools of a pipeline over one task's sandbox as an MCP server, over stdio or streamable HTTP.

Reads calls through the official SDK (extra `mcp`); makes their results. Newer protocol versions have no sessions over
HTTP, so an episode has an id, which is an argument of every tool; a client with a session may leave it out. Guarantees:
in addition to the pipeline's tools there is `START`, which begins an episode and returns the issue; a mistake of the
agent is a result with the error flag, never a protocol error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from packaging.version import Version
from starlette.applications import Starlette
from starlette.routing import Mount

from repairgym import __version__
from repairgym.bridges.clients.episodes import Session, TaskServer, describe_verdict
from repairgym.errors import ConfigError, RepairGymError, install_hint
from repairgym.rollout.external.clients import Observed

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult

START = "start_task"
PATH = "/mcp"
_EPISODE = "episode_id"
_STDIO = "stdio"
_SESSION_HEADER = "mcp-session-id"
_ID_SCHEMA = {"type": "string", "description": f"as {START} returned it; a client with a session may leave it out"}
_START_TOOL: dict[str, Any] = {
    "name": START,
    "description": f"begin a repair task in a fresh sandbox; returns its {_EPISODE} and the issue",
    "parameters": {
        "type": "object",
        "properties": {"task_id": {"type": "string", "description": "the next task in turn when left out"}},
    },
}
_INSTRUCTIONS = (
    f"Repair a bug in a repository. Call {START} first: it returns the issue and an {_EPISODE}. The other tools work "
    "in the sandbox of that task. Call submit when the repair is done; hidden tests decide."
)


def require_mcp() -> None:
    """Raise `ConfigError`, with what to install, unless a supported version of the SDK is installed."""
    try:
        installed = version("mcp")
    except PackageNotFoundError:
        installed = ""
    if not installed or Version(installed).major != 2:
        present = f"mcp {installed} is installed" if installed else "mcp is not installed"
        raise ConfigError(f"{present}; this server needs mcp>=2.3,<3: {install_hint('mcp')}")


@asynccontextmanager
async def http_app(server: TaskServer) -> AsyncIterator[Starlette]:
    """Open the application, with the endpoint at `PATH`."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    episodes = Episodes(server)
    manager = StreamableHTTPSessionManager(episodes.mcp_server())
    async with episodes, manager.run():
        yield Starlette(routes=[Mount(PATH, app=manager.handle_request)])


async def run_stdio(server: TaskServer) -> None:
    """Serve one client over standard input and output until it closes them."""
    from mcp.server.stdio import stdio_server

    async with Episodes(server, default=_STDIO) as episodes, stdio_server() as (incoming, outgoing):
        mcp_server = episodes.mcp_server()
        await mcp_server.run(incoming, outgoing, mcp_server.create_initialization_options())


class Episodes:
    """The episodes of all clients by their ids; use it in an ``async with`` block, which ends them."""

    def __init__(self, server: TaskServer, default: str = "") -> None:
        """``default`` is the session of clients that name none."""
        self._server = server
        self._default = default
        self._sessions: dict[str, Session] = {}
        self._latest: dict[str, str] = {}
        """Session of the protocol -> its latest episode."""

    async def __aenter__(self) -> Episodes:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop what runs."""
        for session in self._sessions.values():
            await session.close()

    def mcp_server(self) -> Server[Any]:
        """Return the server of the SDK."""
        from mcp.server.lowlevel import Server
        from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

        async def list_tools(context: Any, params: Any) -> ListToolsResult:
            return ListToolsResult(
                tools=[
                    Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
                    for tool in self.tools()
                ]
            )

        async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
            request = getattr(context, "request", None)
            session = (request.headers.get(_SESSION_HEADER, "") if request else "") or self._default
            text, told, is_error = await self.call(params.name, dict(params.arguments or {}), session)
            return CallToolResult(
                content=[TextContent(type="text", text=text)], structured_content=told or None, is_error=is_error
            )

        return Server(
            "repairgym",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )

    def tools(self) -> list[dict[str, Any]]:
        """Return `START` and the tools of the pipeline, each with the id of an episode among its arguments."""
        return [_START_TOOL, *map(_with_episode, self._server.tools)]

    async def call(self, name: str, arguments: dict[str, Any], session: str = "") -> tuple[str, dict[str, Any], bool]:
        """Return the text of a call, what it tells as data, and whether it is an error.

        ``session`` is that of the protocol, empty where it has none.
        """
        try:
            if name == START:
                return await self._start(str(arguments.get("task_id") or ""), session)
            episode_id = arguments.pop(_EPISODE, "") or self._latest.get(session, "")
            if not isinstance(episode_id, str) or episode_id not in self._sessions:
                return f"error: no such {_EPISODE}, or it has ended; call {START}, which returns one", {}, True
            return _told(await self._sessions[episode_id].call(name, arguments))
        except RepairGymError as error:
            return f"error: {error}", {}, True
        finally:
            self._forget_ended()

    async def _start(self, task_id: str, session: str) -> tuple[str, dict[str, Any], bool]:
        before = self._sessions.get(self._latest.get(session, ""))
        self._server.check_start(task_id, before is not None and before.episode is not None)
        if before:
            del self._sessions[self._latest.pop(session)]
            await before.close()
        begun, episode_id = Session(self._server), uuid4().hex
        task, observed = await begun.begin(task_id)
        self._sessions[episode_id] = begun
        if session:
            self._latest[session] = episode_id
        told = {_EPISODE: episode_id, "task_id": task.id}
        return f"{_EPISODE}: {episode_id}\n\n{observed.text}", told, bool(observed.error)

    def _forget_ended(self) -> None:
        self._sessions = {name: session for name, session in self._sessions.items() if not session.is_over}
        self._latest = {session: name for session, name in self._latest.items() if name in self._sessions}


def _with_episode(tool: dict[str, Any]) -> dict[str, Any]:
    parameters = tool["parameters"]
    return tool | {"parameters": parameters | {"properties": {**parameters["properties"], _EPISODE: _ID_SCHEMA}}}


def _told(observed: Observed) -> tuple[str, dict[str, Any], bool]:
    if observed.trajectory is None:
        return observed.text, {}, bool(observed.error)
    told = describe_verdict(observed.trajectory)
    return f"{observed.text}\nThe episode has ended: {told['verdict']}.", told, bool(observed.error)
