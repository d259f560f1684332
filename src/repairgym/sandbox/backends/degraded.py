"""The fallback for machines that deny namespaces: a copy of the tree, and the walls a process can build itself.

Guarantees: each sandbox has its own copy; commands get no capability, cannot gain privileges, have no socket, and
bounded memory, file size and output; every process that descends from a sandbox ends with its command and the
folder is removed, even when the host is killed. With Landlock (Linux 5.19 or newer), commands open only files of the
system, the environment and their own, and (6.12 or newer) signal only their own processes. It does **not** isolate:
code inside sees the processes of the host, can fill the disk and start as many processes as the user may, and without
Landlock reads and writes the host user's files. Its outcomes differ from those of other back ends (no loopback, no
``/dev/shm``), and tests always run cold. Trajectories carry the name ``degraded``; evaluation rejects it unless
configured. Snapshots are copies on disk.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repairgym.errors import SandboxError, SandboxLostError
from repairgym.sandbox.backends import stale_cleanup as owner
from repairgym.sandbox.backends.guest_process import ServingProcess, find_prefixes
from repairgym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from repairgym.sandbox.branching import DEFAULT_BYTES, KeptSnapshot, Quota, SessionState, SessionStates, check_snapshot
from repairgym.sandbox.channel import Channel
from repairgym.sandbox.guest_sandbox import GUEST_FOLDER, GuestBackend, reject_links, reject_mounts, reject_root
from repairgym.sandbox.system_view import SystemPaths

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from repairgym_guest.local import main; main()"
_FOLDER_KIND = "degraded"
_COPY_TIMEOUT_S = 120.0
_LANDLOCK_FILES_VERSION, _LANDLOCK_SIGNALS_VERSION = 2, 6


class DegradedBackend(GuestBackend):
    """Implements :class:`~repairgym.sandbox.base.SandboxBackend` without namespaces."""

    def __init__(self, max_snapshot_bytes: int = DEFAULT_BYTES, paths: SystemPaths | None = None) -> None:
        """``max_snapshot_bytes``: bound on the bytes of all snapshots, which lie on disk."""
        super().__init__("degraded")
        self._paths = paths or SystemPaths()
        self.missing_walls: tuple[str, ...] = ()
        """Protections that this kernel lacks; known once a sandbox was made."""
        self.quota = Quota(max_snapshot_bytes)
        self._is_swept = False

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """See :meth:`repairgym.sandbox.base.SandboxBackend.create`; the sandbox has a copy of the tree or snapshot."""
        reject_links(self.name, spec)
        reject_mounts(self.name, spec)
        reject_root(self.name, spec)
        kept = None if snapshot is None else check_snapshot(self.name, spec, snapshot)
        view = self._paths.view(find_prefixes(spec.environment))
        python = spec.environment.resolve() / "bin" / "python"
        if not self._is_swept:
            self._is_swept = True
            owner.sweep_folders(_FOLDER_KIND)
        folder = owner.make_folder(_FOLDER_KIND)
        boot = [str(python), "-B", "-c", _BOOT, str(folder / "guest")]
        try:
            (folder / "guest").mkdir()
            (folder / "guest" / "repairgym_guest").symlink_to(GUEST_FOLDER)
            process = await ServingProcess.start(lambda connection: [*boot, str(connection)])
        except BaseException:
            owner.remove_tree(folder)
            raise
        header: dict[str, Any] = {"folder": str(folder), "tree": str(spec.tree.resolve()), "python": str(python)}
        header |= {"readable": view.readable, "listable": view.listable}
        if kept is not None:
            header["snapshot"] = str(kept.state.folder)
        sessions = {} if kept is None else _moved(kept.sessions, kept.state.origin, folder)

        async def end() -> None:
            # The server first ends its processes.
            await process.end()
            await asyncio.to_thread(owner.remove_tree, folder)

        try:
            sandbox, answer = await self._open(
                process.channel, header, spec, end, _Brancher(self, spec, folder), sessions
            )
        except SandboxLostError as error:
            raise SandboxLostError(
                f"the interpreter {python} did not start ({process.log}); build the environment again"
            ) from error
        self.missing_walls = _missing_walls(answer["landlock_version"], answer["has_seccomp"])
        return sandbox

    async def close(self) -> None:
        """End all sandboxes and snapshots; safe to call twice."""
        await super().close()
        for snapshot in list(self.quota.snapshots):
            await snapshot.close()


@dataclass(frozen=True)
class _Copy:
    """Data from which a snapshot's sandboxes are made."""

    folder: Path
    origin: Path
    """Folder of the sandbox that was copied."""


def _moved(sessions: Mapping[str, SessionState], origin: Path, folder: Path) -> dict[str, SessionState]:
    """Replace ``origin`` by ``folder`` in the paths of ``sessions``: both names are unique words."""
    old, new = str(origin), str(folder)
    return {
        name: replace(state, text=state.text.replace(old.encode(), new.encode()), cwd=state.cwd.replace(old, new))
        for name, state in sessions.items()
    }


class _Brancher:
    """Implements :class:`~repairgym.sandbox.branching.Brancher` by copying."""

    def __init__(self, backend: DegradedBackend, spec: SandboxSpec, folder: Path) -> None:
        self._backend = backend
        self._spec = spec
        self._folder = folder

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """Copy the testbed and the temporary folder of the sandbox behind ``channel``."""
        quota = self._backend.quota
        quota.check()
        folder = owner.make_folder(_FOLDER_KIND)
        try:
            async with channel.hold() as request:
                answer, _ = await request({"op": "snapshot", "folder": str(folder)}, timeout_s=_COPY_TIMEOUT_S)
                states = sessions()
        except BaseException as error:
            await asyncio.to_thread(owner.remove_tree, folder)
            if isinstance(error, OSError):
                raise SandboxError(f"a snapshot could not be taken: {error}") from error
            raise

        async def drop() -> None:
            await asyncio.to_thread(owner.remove_tree, folder)

        state, num_bytes = _Copy(folder, self._folder), int(answer["num_bytes"])
        return KeptSnapshot(self._backend.name, self._spec, state, states, num_bytes, quota, drop)

    async def restore(self, snapshot: Snapshot, count: int) -> tuple[Sandbox, ...]:
        """See :meth:`repairgym.sandbox.branching.Brancher.restore`."""
        calls = (self._backend.create(self._spec, snapshot=snapshot) for _ in range(count))
        made = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in made if isinstance(result, BaseException)]
        children = [result for result in made if not isinstance(result, BaseException)]
        if errors:
            await asyncio.gather(*(child.close() for child in children))
            raise errors[0]
        return tuple(children)


def _missing_walls(landlock_version: int, has_seccomp: bool) -> tuple[str, ...]:
    walls = {
        "files of the host (Landlock of Linux 5.19 or newer)": landlock_version >= _LANDLOCK_FILES_VERSION,
        "signals to processes of the host (Landlock of Linux 6.12 or newer)": (
            landlock_version >= _LANDLOCK_SIGNALS_VERSION
        ),
        "sockets (seccomp on x86-64 or arm64)": has_seccomp,
    }
    return tuple(name for name, is_there in walls.items() if not is_there)
