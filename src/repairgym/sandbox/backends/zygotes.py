"""The resident processes of the namespace back end, on the host: one spawner, and one zygote per (environment, tree).

Reads :class:`~repairgym.sandbox.base.SandboxSpec`, makes processes in new pid namespaces, each with a channel; the
other end is `guest/spawner.py` and `guest/zygote.py`. Guarantees: nothing here forks, so the size of the calling
process does not matter; sandboxes die with their zygote, zygotes with the spawner, the spawner with the host. Two
requests for one zygote start one; a zygote with a live sandbox is never evicted; a dead zygote is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repairgym.errors import InputError, SandboxError, SandboxLostError, SandboxUnavailableError
from repairgym.sandbox.backends.cgroups import Group
from repairgym.sandbox.backends.guest_process import describe_layout
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.channel import Channel
from repairgym.sandbox.guest import spawner, wire
from repairgym.sandbox.guest_sandbox import GUEST_FOLDER
from repairgym.sandbox.system_view import SystemPaths

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from guest.spawner import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)
_START_TIMEOUT_S = 60.0
_REMOUNT_TIMEOUT_S = 30.0
_LISTEN_TIMEOUT_S = 30.0
_BUSY_WAIT_S = 0.005
_NUM_LOOKS = 20
_CHUNK_BYTES = 1 << 16


async def _send(connection: socket.socket, request: bytes, fds: Sequence[int] = ()) -> socket.socket:
    """Send a short request with one end of a new connection and ``fds``; return our end."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            while True:
                try:
                    socket.send_fds(connection, [request], [theirs.fileno(), *fds])
                    return ours
                except BlockingIOError:
                    await asyncio.sleep(_BUSY_WAIT_S)
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            raise SandboxLostError(f"the process that makes sandboxes is gone ({error})") from error
        raise


async def _receive(connection: socket.socket) -> wire.Header:
    """Receive a header without blobs; much faster than a channel for a connection that is used once."""
    connection.setblocking(False)
    data = b""
    while len(data) < wire.PREFIX.size or len(data) < wire.PREFIX.size + wire.PREFIX.unpack_from(data)[0]:
        part = await asyncio.get_running_loop().sock_recv(connection, _CHUNK_BYTES)
        if not part:
            raise EOFError("the other end is gone")
        data += part
    return wire.unpack(data[wire.PREFIX.size :], b"")[0]


def _packed(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()


def _file_of(content: bytes) -> int:
    """Return a descriptor at the start of a file in memory."""
    fd = os.memfd_create("repairgym-layout")
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Spawner:
    """The resident spawner process."""

    def __init__(self, group_folders: list[str], paths: SystemPaths) -> None:
        self._paths = paths
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        arguments = [str(GUEST_FOLDER.parent), str(theirs.fileno()), str(os.getpid()), json.dumps(group_folders)]
        with theirs:
            # A session of its own: Ctrl-C in a terminal must not reach it before the host has cleaned up.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    async def start_zygote(self, spec: SandboxSpec) -> Zygote:
        """Start a zygote for the environment and tree of ``spec``."""
        layout, log_fd = describe_layout(spec, self._paths), os.memfd_create("repairgym-zygote-log")
        try:
            layout_fd = _file_of(_packed(layout))
            try:
                control = await _send(self._connection, spawner.START, [log_fd, layout_fd])
            finally:
                os.close(layout_fd)
            try:
                return await Zygote.wait_ready(control, log_fd)
            except BaseException:
                control.close()
                raise
        finally:
            os.close(log_fd)

    async def close(self) -> None:
        """End the process and, with it, every zygote."""
        self._connection.close()
        await asyncio.to_thread(self._process.wait)


class Zygote:
    """A resident interpreter; its sandboxes are forks of it."""

    def __init__(self, control: socket.socket, has_pytest: bool) -> None:
        self._control = control
        self.has_pytest = has_pytest
        self.num_live = 0
        """Sandboxes and snapshots that need this zygote."""
        self.numbers = itertools.count(1)
        """Names of sandboxes and snapshots."""

    @classmethod
    async def wait_ready(cls, control: socket.socket, log_fd: int) -> Zygote:
        """Wait until the zygote behind ``control`` is ready.

        Raises:
            SandboxUnavailableError: the kernel denied the namespaces or mounts.
            SandboxError: the interpreter of the environment did not start.
        """
        channel = await Channel.open(control.dup())
        try:
            ready, _ = await asyncio.wait_for(channel.receive(), _START_TIMEOUT_S)
        except (OSError, EOFError) as error:
            log = os.pread(log_fd, 4000, 0).decode(errors="replace").strip()
            raise SandboxError(f"the environment's interpreter did not start: {log or error!r}") from error
        finally:
            channel.close()
        if ready.get("error") == "FileNotFoundError":
            raise SandboxError(f"a folder of the sandbox is missing on this machine: {ready['message']}")
        if "error" in ready:
            raise SandboxUnavailableError(
                f"this machine does not let an ordinary process make a sandbox: {ready['message']}; "
                f"'repairgym doctor' says what to change\n{ready['traceback']}"
            )
        control.setblocking(False)
        return cls(control, bool(ready["has_pytest"]))

    async def fork(self, number: int, group: Group | None, snapshot: int | None = None) -> Channel:
        """Fork the sandbox ``number`` into a new pid namespace; return a channel to it. Its commands run in ``group``.

        The mount namespace is that of ``snapshot`` when given.
        """
        with contextlib.ExitStack() as stack:
            roles, fds = ([], []) if group is None else stack.enter_context(group.descriptors())
            request = {"op": "fork", "id": number, "accounting": roles, "snapshot": snapshot}
            connection = await _send(self._control, _packed(request), fds)
        return await Channel.open(connection)

    async def remount(self, sandbox: int, lineage: dict[str, Any]) -> int:
        """Mount the testbed of ``sandbox`` (at rest) as ``lineage`` says; return the number of the snapshot below it.

        After a ``SandboxError`` (the kernel denied it) the sandbox cannot be used any more.
        """
        snapshot = next(self.numbers)
        request = {"op": "remount", "id": sandbox, "snapshot": snapshot, "lineage": lineage}
        with await _send(self._control, _packed(request)) as connection:
            try:
                answer = await asyncio.wait_for(_receive(connection), _REMOUNT_TIMEOUT_S)
            except (OSError, EOFError) as error:
                raise SandboxLostError("the process that makes sandboxes ended during a snapshot") from error
        if "error" in answer:
            await self.drop(snapshots=[snapshot])
            raise SandboxError(f"a snapshot could not be taken: {answer['message']}")
        return snapshot

    async def listen(self, sandbox: int, port: int) -> socket.socket:
        """Return a socket that listens on ``port`` of the loopback interface of ``sandbox``."""
        with await _send(self._control, _packed({"op": "listen", "id": sandbox, "port": port})) as connection:
            connection.setblocking(True)
            connection.settimeout(_LISTEN_TIMEOUT_S)
            try:
                message, fds, _, _ = await asyncio.to_thread(socket.recv_fds, connection, _CHUNK_BYTES, 1)
            except OSError as error:
                raise SandboxLostError("the process that makes sandboxes does not answer") from error
        if not message:
            raise SandboxLostError("the process that makes sandboxes is gone")
        answer, _ = wire.unpack(message[wire.PREFIX.size :], b"")
        if "error" in answer:
            raise SandboxError(f"port {port} of a sandbox cannot be listened on: {answer['message']}")
        return socket.socket(fileno=fds[0])

    async def drop(self, sandboxes: Sequence[int] = (), snapshots: Sequence[int] = ()) -> None:
        """Forget closed sandboxes and snapshots."""
        request = {"op": "drop", "sandboxes": list(sandboxes), "snapshots": list(snapshots)}
        with contextlib.suppress(SandboxLostError, OSError):
            (await _send(self._control, _packed(request))).close()

    async def is_gone(self) -> bool:
        """Return True when the process has ended; waits a moment for one that is about to."""
        for _ in range(_NUM_LOOKS):
            try:
                if self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    return True
            except BlockingIOError:
                await asyncio.sleep(_BUSY_WAIT_S)
            except OSError:
                return True
        return False

    def close(self) -> None:
        """End the zygote and all its sandboxes."""
        self._control.close()


# --- the pool ---------------------------------------------------------------------------------------------------------

_Key = tuple[Path, Path, int, int, tuple[tuple[str, str], ...], tuple[tuple[str, Path], ...], tuple[Path, ...]]
"""Environment, tree, the identity of the tree's folder, links, mounts, layers of an image: a folder made again at the
same path is another tree."""


def _key(spec: SandboxSpec) -> _Key:
    try:
        status = spec.tree.stat()
    except OSError as error:
        raise InputError(f"got the tree {spec.tree}, expected a folder: {error}") from error
    environment, layers = (spec.environment, ()) if spec.root is None else (Path("/"), spec.root.layers)
    links, mounts = tuple(sorted(spec.links.items())), tuple(sorted(spec.mounts.items()))
    return environment, spec.tree, status.st_dev, status.st_ino, links, mounts, layers


class ZygotePool:
    """The spawner and one zygote per (environment, tree), each started at its first use.

    Above ``max_zygotes``, the longest idle one without a live sandbox is evicted.
    """

    def __init__(self, max_zygotes: int, paths: SystemPaths) -> None:
        self._max_zygotes = max_zygotes
        self._paths = paths
        self._spawner: Spawner | None = None
        self._zygotes: dict[_Key, Zygote] = {}
        self._starting: dict[_Key, asyncio.Task[Zygote]] = {}

    async def get(self, spec: SandboxSpec, group_folders: list[str]) -> Zygote:
        """Return the zygote of ``spec``, see `Zygote.wait_ready`; its spawner removes ``group_folders`` at its end."""
        key = _key(spec)
        if self._spawner is not None and not self._spawner.is_alive:
            # The zygotes die with their spawner, but perhaps later.
            await self.close()
        if key in self._zygotes:
            self._zygotes[key] = zygote = self._zygotes.pop(key)
            return zygote
        if key not in self._starting:
            self._starting[key] = asyncio.ensure_future(self._start(key, spec, group_folders))
        return await asyncio.shield(self._starting[key])

    async def _start(self, key: _Key, spec: SandboxSpec, group_folders: list[str]) -> Zygote:
        try:
            if self._spawner is None:
                self._spawner = Spawner(group_folders, self._paths)
            self._evict()
            zygote = await self._spawner.start_zygote(spec)
            self._zygotes[key] = zygote
            return zygote
        finally:
            del self._starting[key]

    def _evict(self) -> None:
        idle = [key for key, zygote in self._zygotes.items() if zygote.num_live == 0]
        for key in idle[: max(0, len(self._zygotes) - self._max_zygotes + 1)]:
            self._forget(key)

    def forget(self, spec: SandboxSpec, zygote: Zygote) -> None:
        """End ``zygote`` if it still is the one of ``spec``; the next `get` starts a new one."""
        key = _key(spec)
        if self._zygotes.get(key) is zygote:
            self._forget(key)

    def _forget(self, key: _Key) -> None:
        zygote = self._zygotes.pop(key, None)
        if zygote is not None:
            zygote.close()

    async def cancel(self) -> None:
        """Cancel the starts under way."""
        for task in list(self._starting.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await task

    async def close(self) -> None:
        """End every process; safe to call twice."""
        for key in list(self._zygotes):
            self._forget(key)
        spawner, self._spawner = self._spawner, None
        if spawner is not None:
            await spawner.close()
