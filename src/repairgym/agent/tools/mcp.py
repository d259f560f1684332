"""Tools of servers of the Model Context Protocol, in the sandbox of the episode or behind a URL.

Reads the configurations of servers; makes tools with the schemas of the servers. Guarantees: the program of a server
runs in the sandbox, which has no network, and starts again for each call, since snapshots hold no processes: its state
is files. A result that the server calls an error, and a call that takes too long, are errors that the agent reads. A
server that fails otherwise is a `SandboxError` (a command) or an `McpServerError` (a URL), never the agent's fault.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from repairgym.agent.guest import stdio_client
from repairgym.agent.guest.stdio import result_text
from repairgym.agent.tools.base import Observation, Tool, ToolContext, ToolServices, UsageError, split_words, tool_error
from repairgym.config.mcp import McpServerConfig
from repairgym.errors import ConfigError, McpServerError, SandboxError, install_hint
from repairgym.records import Record
from repairgym.sandbox.base import ExecResult, Sandbox

LAYER = "/opt/mcp"
_PATH = f"/opt/env/bin:/usr/local/bin:/usr/bin:/bin:{LAYER}/bin:{LAYER}/node_modules/.bin"
_NUM_REASON_CHARS = 300
Run = Callable[[tuple[str, ...], dict[str, str], float], Awaitable[ExecResult]]
"""Runs a program in a sandbox: arguments, environment variables, seconds."""


class AnyArguments(Record, extra="allow"):
    """Arguments that the server checks."""


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]


class McpTool(Tool[AnyArguments]):
    """One tool of a server."""

    is_refreshed = False

    def __init__(self, services: ToolServices, server: McpServerConfig, listed: ListedTool) -> None:
        super().__init__(services)
        self.name = f"{server.name}_{listed.name}"
        words = " ".join(str(name).upper() for name in listed.schema.get("properties") or {})
        description = " ".join(listed.description.split())
        self.usage = f"{self.name} {words}".rstrip() + f" - {description or 'no description'}"
        self._server = server
        self._listed = listed

    def schema(self) -> dict[str, Any]:
        """Return the server's own schema of the arguments."""
        return dict(self._listed.schema)

    def is_text(self, name: str) -> bool:
        """Return True for an argument that can be a string, as in ``Optional[str]``: its text is the value."""
        schema = self._listed.schema
        return takes_text((schema.get("properties") or {}).get(name), schema)

    def read(self, text: str) -> AnyArguments:
        """Read a JSON object, or words in the order of the schema's properties."""
        if text.lstrip().startswith("{"):
            try:
                return self.check(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the arguments are no JSON: {error}") from None
        names, words = list(self._listed.schema.get("properties") or {}), split_words(text)
        if len(words) > len(names):
            raise UsageError(f"got {len(words)} arguments, expected at most {len(names)}")
        return self.check(dict(zip(names, words, strict=False)))

    def check(self, values: Mapping[str, Any]) -> AnyArguments:
        """Check that the required arguments are there; the server checks the rest."""
        if missing := [name for name in self._listed.schema.get("required") or () if name not in values]:
            raise UsageError(f"{missing[0]}: field required")
        return AnyArguments.model_validate(dict(values))

    async def run(self, context: ToolContext, arguments: AnyArguments) -> Observation:
        """Call the tool; SandboxError or McpServerError where the server does not answer."""
        values = arguments.model_dump()
        if self._server.url:
            return await _call_url(self._server, self._listed.name, values)
        request = {"name": self._listed.name, "arguments": values, "max_chars": self._server.max_chars}

        async def run(argv: tuple[str, ...], env: dict[str, str], timeout_s: float) -> ExecResult:
            return await context.workspace.run_program(argv, env=env, timeout_s=timeout_s)

        answer = await _ask(self._server, request, run)
        if answer is None:
            return _too_late(self._server)
        return tool_error(answer["text"]) if answer["is_error"] else Observation(text=answer["text"])


def takes_text(part: Any, schema: Mapping[str, Any], depth: int = 8) -> bool:
    """Return True when ``part`` of the JSON schema ``schema`` takes a string; one that takes anything does not."""
    if not isinstance(part, Mapping) or not depth:
        return False
    target: Any = schema if isinstance(part.get("$ref"), str) else None
    for key in str(part.get("$ref", "")).split("/")[1:]:
        target = target.get(key) if isinstance(target, Mapping) else None
    kinds = part.get("type")
    values = [*(part.get("enum") or ()), *([part["const"]] if "const" in part else ())]
    options = [option for name in ("anyOf", "oneOf", "allOf") for option in part.get(name) or ()]
    is_string = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    is_named = kinds is None and any(isinstance(value, str) for value in values)
    return is_string or is_named or any(takes_text(option, schema, depth - 1) for option in (target, *options))


def _too_late(server: McpServerConfig) -> Observation:
    return tool_error(f"the tool did not answer within {server.timeout_s:g} s and was stopped")


async def list_tools(server: McpServerConfig, sandbox: Sandbox | None) -> list[ListedTool]:
    """Return the chosen tools of ``server``; ``sandbox`` is for one with a command.

    Raises:
        ConfigError: a chosen tool does not exist.
        SandboxError, McpServerError: the server does not answer.
    """
    if server.url:
        listed = await _list_url(server)
    else:
        assert sandbox is not None

        async def run(argv: tuple[str, ...], env: dict[str, str], timeout_s: float) -> ExecResult:
            return await sandbox.exec(argv, timeout_s=timeout_s, env=env)

        answer = await _ask(server, {}, run)
        if answer is None:
            raise SandboxError(f"MCP server {server.name!r} listed no tools within {server.timeout_s:g} s")
        listed = [
            ListedTool(str(tool["name"]), str(tool.get("description") or ""), tool.get("inputSchema") or {})
            for tool in answer["tools"]
        ]
    known = {tool.name for tool in listed}
    if missing := [name for name in server.tools if name not in known]:
        raise ConfigError(f"MCP server {server.name!r} has no tool {missing[0]!r}; it has {sorted(known)}")
    return [tool for tool in listed if not server.tools or tool.name in server.tools]


def add_tools(
    tools: dict[str, Tool[Any]], services: ToolServices, server: McpServerConfig, listed: Sequence[ListedTool]
) -> None:
    """Add the tools of ``server`` to ``tools``; `ConfigError` for a name that is taken."""
    for each in listed:
        tool = McpTool(services, server, each)
        if tool.name in tools:
            raise ConfigError(
                f"{tool.name!r} of MCP server {server.name!r} is the name of another tool; rename the server"
            )
        tools[tool.name] = tool


# --- a program in the sandbox --------------------------------------------------------------------------------------


async def _ask(server: McpServerConfig, request: dict[str, Any], run: Run) -> dict[str, Any] | None:
    """Return the answer of the program; None: it took too long."""
    command = tuple(word.replace("{layer}", LAYER) for word in server.command)
    argv = stdio_client("mcp", json.dumps(request), command)
    done = await run(argv, {"PATH": _PATH, **server.env}, server.timeout_s)
    if done.is_timed_out:
        return None
    if done.exit_status == 0 and not done.is_truncated:
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            pass
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[-_NUM_REASON_CHARS:]
    raise SandboxError(f"MCP server {server.name!r} gave no answer (exit status {done.exit_status}): {said}")


# --- a server over HTTP --------------------------------------------------------------------------------------------


def _open(server: McpServerConfig) -> AbstractAsyncContextManager[Any]:
    """Return the SDK's client of ``server``."""
    try:
        sdk = import_module("mcp.client")
        over_http = import_module("mcp.client.streamable_http")
    except ImportError:
        raise ConfigError(f"MCP server {server.name!r} has a url, which needs mcp: {install_hint('mcp')}") from None
    client: AbstractAsyncContextManager[Any]
    if not server.token_variable:
        client = sdk.Client(server.url)
        return client
    token = os.environ.get(server.token_variable, "")
    if not token:
        raise ConfigError(f"MCP server {server.name!r}: the variable {server.token_variable} is not set")
    session = over_http.create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
    client = sdk.Client(over_http.streamable_http_client(server.url, http_client=session))
    return client


async def _asked(server: McpServerConfig, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    async def connect() -> Any:
        async with _open(server) as client:
            return await ask(client)

    try:
        return await asyncio.wait_for(connect(), server.timeout_s)
    except (TimeoutError, ConfigError):
        raise
    except Exception as error:
        reasons = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        raise McpServerError(f"MCP server {server.name!r} at {server.url} failed: {reasons[0]!r}") from error


async def _list_url(server: McpServerConfig) -> list[ListedTool]:
    async def ask(client: Any) -> list[ListedTool]:
        tools: list[ListedTool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [ListedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return tools

    try:
        return list(await _asked(server, ask))
    except TimeoutError:
        raise McpServerError(f"MCP server {server.name!r} listed no tools within {server.timeout_s:g} s") from None


async def _call_url(server: McpServerConfig, name: str, arguments: dict[str, Any]) -> Observation:
    try:
        result = await _asked(server, lambda client: client.call_tool(name, arguments))
    except TimeoutError:
        return _too_late(server)
    text = result_text(result.model_dump(by_alias=True))[: server.max_chars]
    return tool_error(text) if result.is_error else Observation(text=text)
