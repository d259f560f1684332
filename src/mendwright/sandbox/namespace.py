"""The default back end: Linux namespaces and overlayfs, without a daemon, root or a system package.

Reads :class:`~mendwright.sandbox.base.SandboxSpec`, makes sandboxes. One resident spawner (:mod:`.guest.spawner`)
starts one zygote per (environment, tree); a sandbox is a fork of a zygote in namespaces of its own. Invariants: nothing
here forks, so the size of the calling process does not matter; sandboxes die with their zygote, zygotes with the
spawner, the spawner with the host.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mendwright.errors import InputError, SandboxError, SandboxLostError, SandboxUnavailableError
from mendwright.sandbox.base import Sandbox, SandboxLimits, SandboxSpec, Snapshot
from mendwright.sandbox.branching import DEFAULT_BYTES, KeptSnapshot, Quota, SessionStates, check_snapshot
from mendwright.sandbox.cgroups import ControlGroups, Group
from mendwright.sandbox.channel import Channel
from mendwright.sandbox.guest.lineage import Lineage
from mendwright.sandbox.guest_sandbox import GuestSandbox, start
from mendwright.sandbox.interpreter import find_interpreter_folders
from mendwright.sandbox.session import GRACE_S

GUEST_FOLDER = Path(__file__).parent / "guest"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from guest.spawner import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)
_START_TIMEOUT_S = 60.0
_REMOUNT_TIMEOUT_S = 30.0
_BUSY_WAIT_S = 0.005
_Key = tuple[Path, Path, int, int]
"""Environment, tree, and the identity of the tree's folder: one made again at the same path is another tree."""


async def _send_fds(connection: socket.socket, message: bytes, fds: list[int]) -> None:
    """Pass descriptors over a non-blocking socket."""
    while True:
        try:
            socket.send_fds(connection, [message], fds)
            return
        except BlockingIOError:
            await asyncio.sleep(_BUSY_WAIT_S)
        except OSError as error:
            raise SandboxLostError(f"the process that makes sandboxes is gone ({error})") from error


def _key(spec: SandboxSpec) -> _Key:
    try:
        status = spec.tree.stat()
    except OSError as error:
        raise InputError(f"got the tree {spec.tree}, expected a folder: {error}") from error
    return spec.environment, spec.tree, status.st_dev, status.st_ino


class _Spawner:
    """The resident spawner process."""

    def __init__(self, group_folders: list[str]) -> None:
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
        """Whether the process runs."""
        return self._process.poll() is None

    async def start_zygote(self, spec: SandboxSpec) -> _Zygote:
        """A zygote for the environment and tree of ``spec``."""
        request = {
            "environment": str(spec.environment.resolve()),
            "tree": str(spec.tree.resolve()),
            "guest": str(GUEST_FOLDER),
            "binds": list(find_interpreter_folders(spec.environment)),
        }
        ours, theirs = socket.socketpair()
        log_fd = os.memfd_create("mend-zygote-log")
        try:
            with theirs:
                await _send_fds(self._connection, json.dumps(request).encode(), [theirs.fileno(), log_fd])
            return await _Zygote.wait_ready(ours, log_fd)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(log_fd)

    async def close(self) -> None:
        """End the process and, with it, every zygote."""
        self._connection.close()
        await asyncio.to_thread(self._process.wait)


class _Zygote:
    """A resident interpreter; its sandboxes are forks of it."""

    def __init__(self, control: socket.socket, has_pytest: bool) -> None:
        self._control = control
        self.has_pytest = has_pytest
        self.num_live = 0
        """Sandboxes and snapshots that need this zygote."""
        self._ids = itertools.count(1)

    @classmethod
    async def wait_ready(cls, control: socket.socket, log_fd: int) -> _Zygote:
        """Wait until the zygote behind ``control`` is ready.

        Raises:
            SandboxUnavailableError: the kernel refused the namespaces or mounts.
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
                f"'mend doctor' says what to change\n{ready['traceback']}"
            )
        control.setblocking(False)
        return cls(control, bool(ready["has_pytest"]))

    async def fork(self, group: Group | None, snapshot: int | None = None) -> tuple[int, Channel]:
        """Number of and channel to a new process in a new pid namespace, whose commands run in ``group``.

        Made from the mount namespace of ``snapshot`` when that is given.
        """
        sandbox = next(self._ids)
        ours, theirs = socket.socketpair()
        try:
            with theirs, contextlib.ExitStack() as stack:
                description, fds = stack.enter_context(group.descriptors()) if group is not None else ({}, [])
                request = {"op": "fork", "id": sandbox, "accounting": description, "snapshot": snapshot}
                await _send_fds(self._control, json.dumps(request).encode(), [theirs.fileno(), *fds])
            return sandbox, await Channel.open(ours)
        except BaseException:
            ours.close()
            raise

    async def remount(self, sandbox: int, lineage: dict[str, Any]) -> int:
        """Mount the testbed of ``sandbox`` (at rest) as ``lineage`` says; returns the number of the snapshot below.

        Raises:
            SandboxLostError: the zygote or the sandbox is gone.
            SandboxError: the kernel refused it, and the sandbox cannot be used any more.
        """
        snapshot = next(self._ids)
        request = {"op": "remount", "id": sandbox, "snapshot": snapshot, "lineage": lineage}
        ours, theirs = socket.socketpair()
        with theirs:
            await _send_fds(self._control, json.dumps(request).encode(), [theirs.fileno()])
        channel = await Channel.open(ours)
        try:
            answer, _ = await asyncio.wait_for(channel.receive(), _REMOUNT_TIMEOUT_S)
        except (OSError, EOFError) as error:
            raise SandboxLostError("the process that makes sandboxes ended during a snapshot") from error
        finally:
            channel.close()
        if "error" in answer:
            await self.drop(snapshots=[snapshot])
            raise SandboxError(f"a snapshot could not be taken: {answer['message']}")
        return snapshot

    async def drop(self, sandboxes: Sequence[int] = (), snapshots: Sequence[int] = ()) -> None:
        """Forget what is closed."""
        request = {"op": "drop", "sandboxes": list(sandboxes), "snapshots": list(snapshots)}
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.suppress(SandboxLostError, OSError):
            await _send_fds(self._control, json.dumps(request).encode(), [theirs.fileno()])

    def close(self) -> None:
        """End the zygote and all its sandboxes."""
        self._control.close()


@dataclass(frozen=True)
class _State:
    """What sandboxes are made from a snapshot with."""

    zygote: _Zygote
    snapshot: int
    lineage: Lineage


class _Brancher:
    """Implements :class:`~mendwright.sandbox.branching.Brancher` for one sandbox."""

    def __init__(
        self, backend: NamespaceBackend, quota: Quota, zygote: _Zygote, sandbox: int, spec: SandboxSpec
    ) -> None:
        self._backend = backend
        self._quota = quota
        self._zygote = zygote
        self._sandbox = sandbox
        self._spec = spec
        self._num_kept_bytes = 0

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """Freeze the upper and mount the testbed anew above it, while no command can run."""
        self._quota.check()
        async with channel.hold() as request:
            try:
                answer, _ = await request({"op": "freeze"}, timeout_s=GRACE_S)
            except OSError as error:
                raise SandboxError(f"a snapshot could not be taken: {error}") from error
            try:
                snapshot = await self._zygote.remount(self._sandbox, answer["lineage"])
            except BaseException:
                channel.close()
                raise
            states = sessions()
        num_bytes = max(answer["num_bytes"] - self._num_kept_bytes, 0)
        self._num_kept_bytes = answer["num_bytes"]
        state = _State(self._zygote, snapshot, Lineage.parse(answer["lineage"]))
        self._zygote.num_live += 1

        async def drop() -> None:
            self._zygote.num_live -= 1
            await self._zygote.drop(snapshots=[snapshot])

        return KeptSnapshot(self._backend.name, self._spec, state, states, num_bytes, self._quota, drop)

    async def restore(self, snapshot: Snapshot) -> Sandbox:
        """See :meth:`mendwright.sandbox.branching.Brancher.restore`."""
        return await self._backend.create(self._spec, snapshot=snapshot)


class NamespaceBackend:
    """Implements :class:`~mendwright.sandbox.base.SandboxBackend`.

    Args:
        max_zygotes: Resident interpreters kept; the longest idle one without a live sandbox goes first.
        max_snapshot_bytes: What all snapshots together may keep; it lies in memory.
    """

    def __init__(self, max_zygotes: int = 16, max_snapshot_bytes: int = DEFAULT_BYTES) -> None:
        self.name = "namespace"
        self._max_zygotes = max_zygotes
        self._spawner: _Spawner | None = None
        self._zygotes: dict[_Key, _Zygote] = {}
        self._starting: dict[_Key, asyncio.Task[_Zygote]] = {}
        self._groups: ControlGroups | None = None
        self._quota = Quota(max_snapshot_bytes)
        self._removals: set[asyncio.Future[bool]] = set()
        self._channels: set[Channel] = set()

    @property
    def control_groups(self) -> str:
        """``v2``, ``v1`` or ``none (why)``: what bounds memory and processes of a sandbox together."""
        if self._groups is None:
            self._groups = ControlGroups()
        return self._groups.kind + (f" ({self._groups.reason})" if self._groups.reason else "")

    @property
    def control_group_folders(self) -> tuple[str, ...]:
        """Folders that hold the groups of live sandboxes."""
        return () if self._groups is None else tuple(self._groups.folders)

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """See :meth:`mendwright.sandbox.base.SandboxBackend.create`.

        Raises:
            InputError: no interpreter in the environment, no such tree, a file outside of it, or no snapshot of it.
            SandboxUnavailableError: this machine refuses namespaces.
            SandboxError: the sandbox could not be made.
        """
        if snapshot is not None:
            kept = check_snapshot(self.name, spec, snapshot)
            if self._groups is None:
                raise SandboxLostError("the back end was closed, and its snapshots with it; take another one")
            return await self._create(kept.state.zygote, spec, kept)
        key = _key(spec)
        try:
            return await self._create(await self._zygote(key, spec), spec, None)
        except SandboxLostError:
            self._forget(key)
            return await self._create(await self._zygote(key, spec), spec, None)

    async def _create(self, zygote: _Zygote, spec: SandboxSpec, kept: KeptSnapshot | None) -> Sandbox:
        zygote.num_live += 1
        sandbox, channel, group = 0, None, None
        state: _State | None = None if kept is None else kept.state
        line = Lineage(has_files=bool(spec.files)) if state is None else state.lineage.fork()
        try:
            group = self._create_group(spec.limits)
            sandbox, channel = await zygote.fork(group, None if state is None else state.snapshot)
            await start(channel, {"lineage": line.describe()}, spec)
        except BaseException:
            if channel is not None:
                channel.close()
            await self._release(zygote, sandbox, group)
            raise

        self._channels.add(channel)

        async def release() -> None:
            self._channels.discard(channel)
            await self._release(zygote, sandbox, group)

        brancher = _Brancher(self, self._quota, zygote, sandbox, spec)
        sessions = {} if kept is None else kept.sessions
        return GuestSandbox(self.name, channel, zygote.has_pytest, release, brancher, sessions)

    def _create_group(self, limits: SandboxLimits) -> Group | None:
        assert self._groups is not None
        try:
            return self._groups.create(limits)
        except OSError as error:
            raise SandboxError(f"no control group could be made for a sandbox: {error}") from error

    async def _release(self, zygote: _Zygote, sandbox: int, group: Group | None) -> None:
        # A method, so that a live sandbox keeps the back end and its processes alive.
        zygote.num_live -= 1
        await zygote.drop(sandboxes=[sandbox])
        if group is not None:
            # Not awaited: the group can go once the kernel has ended what was in it.
            removal = asyncio.get_running_loop().run_in_executor(None, group.remove)
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _zygote(self, key: _Key, spec: SandboxSpec) -> _Zygote:
        if self._spawner is not None and not self._spawner.is_alive:
            # The zygotes are about to die too, but may not have yet.
            for other in list(self._zygotes):
                self._forget(other)
        if key in self._zygotes:
            self._zygotes[key] = zygote = self._zygotes.pop(key)
            return zygote
        if key not in self._starting:
            self._starting[key] = asyncio.ensure_future(self._start(key, spec))
        return await asyncio.shield(self._starting[key])

    async def _start(self, key: _Key, spec: SandboxSpec) -> _Zygote:
        try:
            if self._spawner is not None and not self._spawner.is_alive:
                await self._spawner.close()
                self._spawner = None
            if self._groups is None:
                self._groups = ControlGroups()
            if self._spawner is None:
                self._spawner = _Spawner(self._groups.folders)
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

    def _forget(self, key: _Key) -> None:
        zygote = self._zygotes.pop(key, None)
        if zygote is not None:
            zygote.close()

    async def close(self) -> None:
        """End all sandboxes and resident processes; safe to call twice."""
        for task in list(self._starting.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await task
        # First of all: a command that ends because everything is being ended must not count as one that was killed.
        for channel in list(self._channels):
            channel.close()
        self._channels.clear()
        for key in list(self._zygotes):
            self._forget(key)
        if self._spawner is not None:
            await self._spawner.close()
            self._spawner = None
        await asyncio.gather(*self._removals)
        if self._groups is not None:
            await asyncio.to_thread(self._groups.close)
            self._groups = None
