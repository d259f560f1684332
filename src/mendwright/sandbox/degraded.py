"""The fallback back end for machines that refuse namespaces: a copy of the tree, resource limits, and no walls.

It does **not** isolate: code inside reads every file the host user can read, writes outside of its copy, reaches the
network, sees and signals other processes of the user, and can fill the disk. What it does: each sandbox has its own
copy; commands get no capability, cannot gain privileges and have bounded memory, file size and output; every process
that descends from a sandbox is ended with its command and the folder is removed, even when the host is killed. Tests
always run cold. Trajectories carry the name ``degraded``; evaluation refuses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mendwright.errors import InputError, SandboxError, SandboxLostError
from mendwright.sandbox.base import Sandbox, SandboxSpec, Snapshot
from mendwright.sandbox.branching import DEFAULT_BYTES, KeptSnapshot, Quota, SessionStates, check_snapshot
from mendwright.sandbox.channel import Channel
from mendwright.sandbox.guest_sandbox import GuestSandbox, start
from mendwright.sandbox.namespace import GUEST_FOLDER
from mendwright.sandbox.owners import Owner
from mendwright.sandbox.session import SessionState

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from mend_guest.local import main; main()"
_PREFIX = "mend-"
_OWNER_FILE = "owner"
_COPY_TIMEOUT_S = 120.0


class DegradedBackend:
    """Implements :class:`~mendwright.sandbox.base.SandboxBackend` without isolation."""

    def __init__(self, max_snapshot_bytes: int = DEFAULT_BYTES) -> None:
        """``max_snapshot_bytes``: what all snapshots together may keep; it lies on disk."""
        self.name = "degraded"
        self._live: set[GuestSandbox] = set()
        self._snapshots: set[KeptSnapshot] = set()
        self._quota = Quota(max_snapshot_bytes)
        sweep_folders(Path(tempfile.gettempdir()))

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A fresh copy of the tree (or of what ``snapshot`` holds) and a process that serves it.

        Raises:
            InputError: ``spec`` names an environment without an interpreter, or ``snapshot`` is none of ``spec``.
            SandboxError: the copy could not be made.
        """
        kept = None if snapshot is None else check_snapshot(self.name, spec, snapshot)
        python = spec.environment.resolve() / "bin" / "python"
        if not python.exists():
            raise InputError(f"got {spec.environment}, expected a virtual environment with bin/python; build it again")
        folder = make_folder()
        (folder / "mend_guest").symlink_to(GUEST_FOLDER)
        ours, process = _start_server(python, folder)
        channel = await Channel.open(ours)
        header = {"folder": str(folder), "tree": str(spec.tree.resolve()), "python": str(python)}
        if kept is not None:
            header["snapshot"] = str(kept.state.folder)

        async def release() -> None:
            self._live.discard(sandbox)
            await _end(process, folder)

        try:
            answer = await start(channel, header, spec)
        except BaseException as error:
            channel.close()
            await _end(process, folder)
            if isinstance(error, SandboxLostError):
                raise SandboxLostError(
                    f"the interpreter {python} did not start; build the environment again"
                ) from error
            raise
        sessions = {} if kept is None else _moved(kept.sessions, kept.state.origin, folder)
        brancher = _Brancher(self, spec, folder)
        sandbox = GuestSandbox(self.name, channel, bool(answer["has_pytest"]), release, brancher, sessions)
        self._live.add(sandbox)
        return sandbox

    async def take_snapshot(
        self, spec: SandboxSpec, origin: Path, channel: Channel, sessions: SessionStates
    ) -> KeptSnapshot:
        """Copy the testbed and the temporary folder of the sandbox behind ``channel``, which lies in ``origin``.

        Raises:
            SandboxLostError: the sandbox is gone.
            SandboxError: no room.
        """
        self._quota.check()
        folder = make_folder()
        try:
            async with channel.hold() as request:
                answer, _ = await request({"op": "snapshot", "folder": str(folder)}, timeout_s=_COPY_TIMEOUT_S)
                states = sessions()
        except BaseException as error:
            await asyncio.to_thread(remove_tree, folder)
            if isinstance(error, OSError):
                raise SandboxError(f"a snapshot could not be taken: {error}") from error
            raise

        async def drop() -> None:
            self._snapshots.discard(kept)
            await asyncio.to_thread(remove_tree, folder)

        kept = KeptSnapshot(self.name, spec, _Copy(folder, origin), states, int(answer["num_bytes"]), self._quota, drop)
        self._snapshots.add(kept)
        return kept

    async def close(self) -> None:
        """End all sandboxes and snapshots; safe to call twice."""
        for sandbox in list(self._live):
            await sandbox.close()
        for snapshot in list(self._snapshots):
            await snapshot.close()


@dataclass(frozen=True)
class _Copy:
    """What sandboxes are made from a snapshot with."""

    folder: Path
    origin: Path
    """Folder of the sandbox that was copied."""


def _moved(sessions: Mapping[str, SessionState], origin: Path, folder: Path) -> dict[str, SessionState]:
    """``sessions`` with the paths of ``folder`` instead of those of ``origin``: both names are unique words."""
    old, new = str(origin), str(folder)
    return {
        name: replace(state, text=state.text.replace(old.encode(), new.encode()), cwd=state.cwd.replace(old, new))
        for name, state in sessions.items()
    }


class _Brancher:
    """Implements :class:`~mendwright.sandbox.branching.Brancher` by copying."""

    def __init__(self, backend: DegradedBackend, spec: SandboxSpec, folder: Path) -> None:
        self._backend = backend
        self._spec = spec
        self._folder = folder

    async def snapshot(self, channel: Channel, sessions: SessionStates) -> Snapshot:
        """See :meth:`mendwright.sandbox.branching.Brancher.snapshot`."""
        return await self._backend.take_snapshot(self._spec, self._folder, channel, sessions)

    async def restore(self, snapshot: Snapshot) -> Sandbox:
        """See :meth:`mendwright.sandbox.branching.Brancher.restore`."""
        return await self._backend.create(self._spec, snapshot=snapshot)


def make_folder() -> Path:
    """A temporary folder that says whose it is."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (folder / _OWNER_FILE).write_text(Owner.current().text)
    return folder


def sweep_folders(parent: Path) -> None:
    """Remove the folders in ``parent`` whose owners are gone: what a power cut or a kill of all at once leaves."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue  # others may put anything into a temporary folder
            owner = Owner.parse((folder / _OWNER_FILE).read_text())
            if owner is not None and owner.is_gone:
                remove_tree(folder)


def _start_server(python: Path, folder: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [str(python), "-B", "-c", _BOOT, str(folder), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    return ours, process


async def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the server has ended its processes and removed its folder."""
    try:
        await asyncio.to_thread(process.wait, 30.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, 9)
        process.wait()
    await asyncio.to_thread(remove_tree, folder)


def remove_tree(folder: Path) -> None:
    """Remove ``folder`` however deep code inside made it; what cannot be removed stays."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
