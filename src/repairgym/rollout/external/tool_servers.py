"""Tools of other people's servers in a pipeline of ours: packages, the first listing, mounts of sandboxes.

Reads ``pipeline.mcp``; makes tools in the pipeline. Guarantees: the tools are listed once per process and are the same
in all its episodes; a sandbox shows the packages of the servers, and never the repair of its task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.tools.base import Tool
from repairgym.agent.tools.mcp import LAYER, add_tools, list_tools
from repairgym.config.mcp import McpServerConfig
from repairgym.errors import RepairInSightError
from repairgym.records import Task
from repairgym.sandbox.base import Sandbox
from repairgym.tasks.layers.agents import agent_layer, has_distribution
from repairgym.tasks.layers.store import LayerStore


class ToolServers:
    """The servers of one process's pipeline."""

    def __init__(self, pipeline: Pipeline[Any], store: LayerStore | None) -> None:
        """Install and ask nothing yet."""
        self._pipeline = pipeline
        self._servers: tuple[McpServerConfig, ...] = pipeline.config.mcp
        self._store = store
        self._lock = asyncio.Lock()
        self._is_connected = False
        self.mounts: dict[str, Path] = {}
        """Folders of packages that the agent's sandboxes show."""

    async def connect(self, task: Task, create: Callable[[], Awaitable[Sandbox]]) -> None:
        """Add the tools to the pipeline, the first time; ``create`` makes a sandbox of ``task``.

        Raises:
            RepairInSightError: the packages of the servers hold the repair of ``task``.
            SandboxError, McpServerError: a server does not answer; another call tries again.
        """
        if not self._servers:
            return
        async with self._lock:
            if not self._is_connected:
                await self._install()
        if any(has_distribution(layer, task.provenance.package) for layer in self.mounts.values()):
            raise RepairInSightError(
                f"the packages of the MCP servers hold {task.provenance.package}, in which the repair of {task.id} "
                "could be read; leave the tasks of this package out (select.packages)"
            )
        async with self._lock:
            if not self._is_connected:
                self._pipeline.tools.update(await self._list(create))
                self._is_connected = True

    async def _install(self) -> None:
        requirements = tuple(sorted({pin for server in self._servers for pin in server.requirements}))
        npm = tuple(sorted({pin for server in self._servers for pin in server.npm}))
        if requirements or npm:
            store = self._store or LayerStore()
            self.mounts = {LAYER: await asyncio.to_thread(agent_layer, store, requirements, npm)}

    async def _list(self, create: Callable[[], Awaitable[Sandbox]]) -> dict[str, Tool[Any]]:
        sandbox = await create() if any(server.command for server in self._servers) else None
        tools = dict(self._pipeline.tools)
        try:
            for server in self._servers:
                add_tools(tools, self._pipeline.services, server, await list_tools(server, sandbox))
        finally:
            if sandbox is not None:
                await sandbox.close()
        return tools
