"""The back end that isolates with a container engine: podman or docker, through their command lines.

Reads :class:`~repairgym.sandbox.base.SandboxSpec`, makes one container per sandbox, whose first process is the trusted
one (`guest/contained.py`). Host and container talk over a Unix socket in a folder of the host; the start tree
is passed over it as a descriptor, so that it has no path inside. Guarantees: the container shows folders of the host
read-only and has no network; it ends whenever the host hangs up; the next start removes what a power cut left.
``/testbed`` is a copy of the tree in memory, and tests always run cold.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from repairgym.config.sandbox import ContainerConfig
from repairgym.errors import InputError, SandboxContentError, SandboxError, SandboxLostError
from repairgym.sandbox.backends import engine
from repairgym.sandbox.backends import stale_cleanup as owner
from repairgym.sandbox.backends.guest_process import find_interpreter_folders
from repairgym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from repairgym.sandbox.channel import Channel
from repairgym.sandbox.guest import files, rootfs
from repairgym.sandbox.guest_sandbox import GUEST_FOLDER, GuestBackend, reject_links, reject_mounts, reject_root
from repairgym.sandbox.system_view import SystemPaths, SystemView

_SOCKET = "/.repairgym/socket"
_BOOT = (
    "import sys; sys.path.insert(0, '/opt/repairgym'); "
    "from repairgym_guest.contained import main_in_container as main; "
)
_FOLDER_KIND = "container"
_FOLDER_MODE = 0o755


class ContainerBackend(GuestBackend):
    """Implements :class:`~repairgym.sandbox.base.SandboxBackend`."""

    def __init__(self, config: ContainerConfig | None = None, paths: SystemPaths | None = None) -> None:
        super().__init__("container")
        self._paths = paths or SystemPaths()
        self._config = config or ContainerConfig()
        self._engine: engine.Engine | None = None
        self._engine_lock = asyncio.Lock()

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """See :meth:`repairgym.sandbox.base.SandboxBackend.create`; this back end has no snapshots."""
        self._check(spec, snapshot)
        reject_links(self.name, spec)
        reject_mounts(self.name, spec)
        reject_root(self.name, spec)
        view = self._paths.view(find_interpreter_folders(spec.environment))
        chosen = await self._find_engine()
        name, folder = f"repairgym-{uuid.uuid4().hex}", owner.make_folder(_FOLDER_KIND)

        async def discard() -> None:
            with contextlib.suppress(SandboxError):
                await chosen.remove(name)
            await asyncio.to_thread(owner.remove_tree, folder)

        try:
            before = await asyncio.to_thread(make_before, spec, folder)
            binds = await asyncio.to_thread(_binds, spec, view, folder)
            archive = engine.root_archive(view)
            channel = await self._connect(chosen, name, folder, before, spec, binds, archive)
        except BaseException:
            await discard()
            raise
        sandbox, _ = await self._open(channel, {"files": {}}, spec, discard)
        return sandbox

    async def _find_engine(self) -> engine.Engine:
        async with self._engine_lock:
            if self._engine is None:
                owner.sweep_folders(_FOLDER_KIND)
                self._engine = await engine.find_engine(self._config)
        return self._engine

    async def _connect(
        self,
        chosen: engine.Engine,
        name: str,
        folder: Path,
        before: Path,
        spec: SandboxSpec,
        binds: dict[str, str],
        archive: bytes,
    ) -> Channel:
        """Start the container with the root ``archive`` and wait until its trusted process has connected."""
        path = folder / "socket"
        command = [f"{rootfs.ENVIRONMENT}/bin/python", "-B", "-c", f"{_BOOT}main({_SOCKET!r})"]
        async with _listening(path) as server:
            await chosen.start(name, spec.limits, {**binds, _SOCKET: str(path)}, command, archive)
            try:
                accepting = asyncio.get_running_loop().sock_accept(server)
                connection, _ = await asyncio.wait_for(accepting, self._config.start_timeout_s)
            except TimeoutError as error:
                raise SandboxLostError(
                    f"the container {name} started, but the interpreter of {spec.environment} did not; "
                    "build the environment again"
                ) from error
        fd = os.open(before, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(connection, [b"."], [fd])
        finally:
            os.close(fd)
        return await Channel.open(connection)


def _binds(spec: SandboxSpec, view: SystemView, folder: Path) -> dict[str, str]:
    """Return path inside -> path of the host; ``folder`` gets the empty ones that cover what is hidden."""
    empty_folder, empty_file = folder / "empty", folder / "empty_file"
    empty_folder.mkdir(mode=_FOLDER_MODE)
    empty_file.touch(mode=0o444)
    return {
        **{path: path for path in view.binds},
        **{path: str(empty_folder if os.path.isdir(path) else empty_file) for path in view.covers},
        rootfs.ENVIRONMENT: str(spec.environment.resolve()),
        rootfs.GUEST: str(GUEST_FOLDER),
    }


@contextlib.asynccontextmanager
async def _listening(path: Path) -> AsyncIterator[socket.socket]:
    """Open a socket at ``path`` for one connection; the folder around it is closed to other users of the host."""
    with socket.socket(socket.AF_UNIX) as server:
        server.setblocking(False)
        server.bind(str(path))
        path.chmod(0o777)
        server.listen(1)
        yield server


def make_before(spec: SandboxSpec, folder: Path) -> Path:
    """Make the tree with the sandbox's files written over it; unchanged files are hard links to the layer's own.

    Everybody can read everything in it, because the process inside is another user; the folder around it is closed.
    """
    before = folder / "before"
    shutil.copytree(spec.tree, before, symlinks=True, copy_function=_link)
    for path, text in spec.files.items():
        try:
            with files.placing(path):
                files.replace(str(before), path, text)
        except PermissionError as error:
            raise InputError(str(error)) from error
        except files.PlacingError as error:
            raise SandboxContentError(str(error)) from error
    for parent, _, _ in os.walk(before):
        Path(parent).chmod(Path(parent).stat().st_mode | _FOLDER_MODE)
    return before


def _link(source: str, target: str) -> None:
    status = os.lstat(source)
    is_readable = stat.S_ISLNK(status.st_mode) or bool(status.st_mode & stat.S_IROTH)
    with contextlib.suppress(OSError):
        # Fails on another file system and for files of other users.
        if is_readable:
            os.link(source, target, follow_symlinks=False)
            return
    shutil.copy2(source, target, follow_symlinks=False)
    if not is_readable:
        Path(target).chmod(stat.S_IMODE(status.st_mode) | stat.S_IROTH)
