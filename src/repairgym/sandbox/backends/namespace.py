"""The default back end: Linux namespaces and overlayfs, without a daemon, root or a system package.

Reads :class:`~repairgym.sandbox.base.SandboxSpec`, makes sandboxes. One resident spawner starts one zygote per
(environment, tree), see `zygotes.py`; a sandbox is a fork of a zygote in namespaces of its own. Guarantees: closing a
sandbox releases its process, control group and place in the zygote, also before it is complete;
:meth:`~NamespaceBackend.create` returns a working sandbox, while a fork returns as soon as its state is frozen, and
its first request waits for its namespaces.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from repairgym.errors import SandboxError, SandboxLostError
from repairgym.sandbox.backends.cgroups import ControlGroups, Group
from repairgym.sandbox.backends.images import variables_of
from repairgym.sandbox.backends.zygotes import Zygote, ZygotePool
from repairgym.sandbox.base import Sandbox, SandboxLimits, SandboxSpec, Snapshot
from repairgym.sandbox.branching import DEFAULT_BYTES, KeptSnapshot, Quota, SessionStates, check_snapshot
from repairgym.sandbox.channel import GRACE_S, Channel, OpeningChannel
from repairgym.sandbox.guest.isolation import Lineage, mount_options
from repairgym.sandbox.guest_sandbox import GuestSandbox, start
from repairgym.sandbox.system_view import SystemPaths


@dataclass(frozen=True)
class _State:
    """Data from which a snapshot's sandboxes are made."""

    zygote: Zygote
    snapshot: int
    lineage: Lineage
    openings: set[asyncio.Future[Channel]] = field(default_factory=set)
    """Unfinished forks of it; the zygote has to hold it until they are done."""


class _Brancher:
    """Implements :class:`~repairgym.sandbox.branching.Brancher` for one sandbox."""

    def __init__(self, backend: NamespaceBackend, zygote: Zygote, sandbox: int, spec: SandboxSpec) -> None:
        self._backend = backend
        self._zygote = zygote
        self._sandbox = sandbox
        self._spec = spec
        self._num_kept_bytes = 0

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """Freeze the upper and remount the testbed above it, while no command can run."""
        quota = self._backend.quota
        quota.check()
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
            if state.openings:
                # The caller of a fork does not wait for this.
                self._backend.run_in_background(_drop(state))
            else:
                await _drop(state)

        return KeptSnapshot(self._backend.name, self._spec, state, states, num_bytes, quota, drop)

    async def restore(self, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
        """See :meth:`repairgym.sandbox.branching.Brancher.restore`; the first request to each waits for its making."""
        kept = check_snapshot(self._backend.name, self._spec, snapshot)
        return tuple(self._backend.branch(kept, self._spec)[0] for _ in range(count))


async def _drop(state: _State) -> None:
    if state.openings:
        await asyncio.wait(state.openings)
    state.zygote.num_live -= 1
    await state.zygote.drop(snapshots=[state.snapshot])


class NamespaceBackend:
    """Implements :class:`~repairgym.sandbox.base.SandboxBackend`.

    At most ``max_zygotes`` interpreters are resident (:class:`.zygotes.ZygotePool`), and all snapshots together hold at
    most ``max_snapshot_bytes`` of memory.
    """

    def __init__(
        self, max_zygotes: int = 16, max_snapshot_bytes: int = DEFAULT_BYTES, paths: SystemPaths | None = None
    ) -> None:
        self.name = "namespace"
        self.quota = Quota(max_snapshot_bytes)
        self._pool = ZygotePool(max_zygotes, paths or SystemPaths())
        self._groups: ControlGroups | None = None
        self._openings: set[asyncio.Future[Channel]] = set()
        self._background: set[asyncio.Future[Any]] = set()
        """Removals of groups and drops of snapshots that outlast the call that began them."""
        self._channels: set[Channel] = set()
        self._unremoved: list[Group] = []
        """Groups with a process that did not end in time; removed at a later start."""

    @property
    def control_group_folders(self) -> tuple[str, ...]:
        """Folders that hold the groups of live sandboxes."""
        return () if self._groups is None else tuple(self._groups.folders)

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """See :meth:`repairgym.sandbox.base.SandboxBackend.create`."""
        if snapshot is not None:
            return await _opened(*self.branch(check_snapshot(self.name, spec, snapshot), spec))
        if self._groups is None:
            self._groups = ControlGroups()
        unremoved, self._unremoved = self._unremoved, []
        for group in unremoved:
            self.run_in_background(self._remove(group))
        try:
            return await self._create(spec, self._groups)
        except SandboxLostError:
            return await self._create(spec, self._groups)

    async def _create(self, spec: SandboxSpec, groups: ControlGroups) -> Sandbox:
        zygote = await self._pool.get(spec, groups.folders)
        try:
            return await self._create_from(zygote, spec)
        except SandboxLostError:
            # One start can be lost for reasons of its own; a zygote that lives has other sandboxes.
            if await zygote.is_gone():
                self._pool.forget(spec, zygote)
            raise

    async def _create_from(self, zygote: Zygote, spec: SandboxSpec) -> Sandbox:
        num_layers = len(spec.root.layers) if spec.root is not None else 0
        line = Lineage(has_files=bool(spec.files), num_layers=num_layers)
        return await _opened(*self._begin(zygote, spec, line, None))

    def branch(self, kept: KeptSnapshot, spec: SandboxSpec) -> tuple[Sandbox, asyncio.Future[Channel]]:
        """Begin a sandbox from the snapshot ``kept``; return it with the future of its channel."""
        state: _State = kept.state
        if self._groups is None:
            raise SandboxLostError("the back end was closed, and its snapshots with it; take another one")
        line = state.lineage.fork()
        try:
            mount_options(line)
        except OSError as error:
            raise SandboxError(f"a sandbox cannot be forked: {error.strerror}") from error
        return self._begin(state.zygote, spec, line, kept)

    def _begin(
        self, zygote: Zygote, spec: SandboxSpec, line: Lineage, kept: KeptSnapshot | None
    ) -> tuple[Sandbox, asyncio.Future[Channel]]:
        """Begin the making of a sandbox; its close releases what it holds."""
        number, groups = next(zygote.numbers), list[Group]()
        zygote.num_live += 1
        snapshot = None if kept is None else kept.state.snapshot
        opening = asyncio.ensure_future(self._open(zygote, number, groups, spec, line, snapshot))
        channel = OpeningChannel(opening)
        self._channels.add(channel)
        for openings in (self._openings, *(() if kept is None else (kept.state.openings,))):
            openings.add(opening)
            opening.add_done_callback(openings.discard)

        async def release() -> None:
            self._channels.discard(channel)
            await asyncio.wait({opening})
            await self._release(zygote, number, groups)

        brancher = _Brancher(self, zygote, number, spec)
        sessions = {} if kept is None else kept.sessions
        # Whether an image has pytest is asked inside, when it is needed.
        has_pytest = zygote.has_pytest or spec.root is not None

        async def listen(port: int) -> socket.socket:
            await opening
            return await zygote.listen(number, port)

        return GuestSandbox(self.name, channel, has_pytest, release, brancher, sessions, listen), opening

    async def _open(
        self,
        zygote: Zygote,
        number: int,
        groups: list[Group],
        spec: SandboxSpec,
        line: Lineage,
        snapshot: int | None,
    ) -> Channel:
        """Make the sandbox ``number`` and return its channel; its control group is added to ``groups``."""
        group = self._create_group(spec.limits)
        groups += [] if group is None else [group]
        channel = await zygote.fork(number, group, snapshot)
        try:
            await start(channel, {"lineage": line._asdict(), "variables": variables_of(spec)}, spec)
        except BaseException:
            channel.close()
            raise
        return channel

    def _create_group(self, limits: SandboxLimits) -> Group | None:
        if self._groups is None:
            raise SandboxLostError("the back end was closed; make another one")
        try:
            return self._groups.create(limits)
        except OSError as error:
            raise SandboxError(f"no control group could be made for a sandbox: {error}") from error

    async def _release(self, zygote: Zygote, number: int, groups: list[Group]) -> None:
        # A method, because a live sandbox has to keep the back end and its processes alive.
        zygote.num_live -= 1
        await zygote.drop(sandboxes=[number])
        for group in groups:
            # A group can be removed once the kernel has ended its processes.
            self.run_in_background(self._remove(group))

    async def _remove(self, group: Group) -> None:
        if not await asyncio.to_thread(group.remove):
            self._unremoved.append(group)

    def run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run ``work`` in the background; closing the back end waits for it."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """End all sandboxes and resident processes; safe to call twice."""
        await self._pool.cancel()
        # First: a command that ends because of this close must not count as killed.
        for channel in list(self._channels):
            channel.close()
        self._channels.clear()
        await asyncio.gather(*self._openings, return_exceptions=True)
        await self._pool.close()
        await asyncio.gather(*self._background)
        if self._groups is not None:
            await asyncio.to_thread(self._groups.close)
            self._groups = None


async def _opened(sandbox: Sandbox, opening: asyncio.Future[Channel]) -> Sandbox:
    """Wait for the making of ``sandbox``; release what it holds when that fails."""
    try:
        await opening
    except BaseException:
        await sandbox.close()
        raise
    return sandbox
