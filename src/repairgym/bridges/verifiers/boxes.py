"""The sandbox of one episode of an agent that verifiers runs: commands, files, packages, and a way to its model.

Imports no verifiers. Guarantees: a program inside reaches the forwarded ports of this machine and nothing else; its
packages are read-only; a task whose own package is among them has no episode, because its repair could be read there.
"""

import asyncio
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from repairgym.agent.tools.workspace import Workspace
from repairgym.errors import InputError, SandboxError
from repairgym.records import Task, Verdict
from repairgym.rollout.external.agents import LAYER, PORT, check_unseen, write_file
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import ExecResult
from repairgym.tasks.layers.agents import agent_layer
from repairgym.tasks.layers.store import LayerStore

PATH = f"/opt/env/bin:/usr/local/bin:/usr/bin:/bin:{LAYER}/bin"
"""The environment of the task comes first: ``python`` is the project's."""
_FILE_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 16
_SCRIPT_START, _SCRIPT_END = "# /// script", "# ///"


class Box:
    """Starts no sandbox before something runs, so that packages can be installed first."""

    def __init__(self, runner: Runner, store: LayerStore, task: Task, time_limit_s: float) -> None:
        """Belong to one episode of ``task``; a program has ``time_limit_s``."""
        self._runner = runner
        self._store = store
        self._task = task
        self._time_limit_s = time_limit_s
        self._workspace: Workspace | None = None
        self._is_closed = False
        self._layer: Path | None = None
        self._ports: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._piped: set[asyncio.Task[None]] = set()

    async def install(self, requirements: tuple[str, ...]) -> None:
        """Show a layer with these distributions; `RepairInSightError` where it holds the package of the task."""
        layer = await asyncio.to_thread(agent_layer, self._store, requirements, ())
        if self._workspace is not None and layer != self._layer:
            raise SandboxError("packages of a second program cannot be added to a sandbox that runs")
        check_unseen(layer, self._task, "the packages of the harness hold")
        self._layer = layer

    def forward(self, url: str) -> str:
        """Return the URL inside for ``url`` of this machine, served once `open_ports` was awaited."""
        parts = urlsplit(url)
        port = self._ports.setdefault(parts.netloc, PORT + len(self._ports))
        return parts._replace(netloc=f"127.0.0.1:{port}").geturl()

    async def open_ports(self) -> None:
        """Forward the ports that `forward` has promised."""
        sandbox = await self._files().sandbox()
        for netloc, port in list(self._ports.items())[len(self._servers) :]:
            host, _, number = netloc.rpartition(":")

            async def pipe(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, number: str = number
            ) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._piped.add(task)
                task.add_done_callback(self._piped.discard)
                await _pipe(reader, writer, host, int(number))

            self._servers.append(await asyncio.start_server(pipe, sock=await sandbox.listen(port)))

    async def run(self, argv: tuple[str, ...], env: Mapping[str, str]) -> ExecResult:
        """Run a program in the tree."""
        env = {"PATH": PATH, "HOME": "/tmp", **env}
        return await self._files().run_program(argv, env=env, timeout_s=self._time_limit_s)

    async def write(self, path: str, content: bytes) -> None:
        """Write a file, relative to the tree or absolute; `SandboxError` where it cannot be written."""
        sandbox = await self._files().sandbox()
        await write_file(sandbox, path, content, path, timeout_s=_FILE_TIMEOUT_S)

    async def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the first bytes of a file, all by default; `SandboxError` where it cannot be read whole."""
        sandbox = await self._files().sandbox()
        argv = ("cat", "--", path) if max_bytes is None else ("head", "-c", str(max_bytes), "--", path)
        done = await sandbox.exec(argv, timeout_s=_FILE_TIMEOUT_S)
        if done.exit_status != 0 or done.is_truncated:
            raise SandboxError(f"{path} could not be read: {_tail(done.stderr) or 'it is too large'}")
        return done.stdout

    async def grade(self) -> tuple[Verdict, str]:
        """Return the verdict on the tree as it is now, and the patch."""
        return await self._runner.grade(self._task, self._files())

    async def close(self) -> None:
        """End the sandbox and what is forwarded, for good; safe to call twice."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        for task in list(self._piped):
            task.cancel()
        self._servers.clear()
        if self._workspace is not None:
            await self._workspace.close()

    def _files(self) -> Workspace:
        if self._is_closed:
            raise SandboxError("the sandbox has ended with its episode")
        if self._workspace is None:
            mounts = {} if self._layer is None else {LAYER: self._layer}
            self._workspace = self._runner.open_workspace(self._task, mounts)
        return self._workspace


def script_requirements(script: str) -> tuple[str, ...]:
    """Return the dependencies that the metadata of a script name (PEP 723); `InputError` where it has none."""
    lines = script.splitlines()
    with suppress(ValueError, tomllib.TOMLDecodeError):
        start = lines.index(_SCRIPT_START)
        end = lines.index(_SCRIPT_END, start + 1)
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 : end])
        return tuple(tomllib.loads(text).get("dependencies", ()))
    raise InputError("the program of the harness has no script metadata (PEP 723) that say what it needs")


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Connect a client to ``host`` until both sides have ended."""
    try:
        other_reader, other_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    try:
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
    finally:
        writer.close()
        other_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _tail(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[-300:]
