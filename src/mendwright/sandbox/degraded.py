"""The fallback for machines that refuse namespaces: a copy of the tree and what a process can wall off itself.

What it does: each sandbox has its own copy; commands get no capability, cannot gain privileges, have no socket, and
bounded memory, file size and output; every process that descends from a sandbox is ended with its command and the
folder is removed, even when the host is killed. Where the kernel has Landlock (5.19 or newer), commands open no file
but the system's, the environment's and their own, and (6.12 or newer) signal no process but their own. What it does
**not**: code inside sees the processes of the host, can fill the disk and start as many processes as the user may,
and without Landlock reads and writes what the host user can. Its outcomes differ from those of other back ends (no
loopback, no ``/dev/shm``), and tests always run cold. Trajectories carry the name ``degraded``; evaluation refuses it
unless told.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from mendwright.errors import SandboxLostError
from mendwright.sandbox import owner
from mendwright.sandbox.base import Sandbox, SandboxSpec
from mendwright.sandbox.guest_sandbox import GuestSandbox, start
from mendwright.sandbox.interpreter import find_prefixes
from mendwright.sandbox.serving import ServingProcess

_GUEST_FOLDER = Path(__file__).parent / "guest"
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from mend_guest.local import main; main()"
_FOLDER_KIND = "degraded"
_LANDLOCK_FILES_VERSION, _LANDLOCK_SIGNALS_VERSION = 2, 6


class DegradedBackend:
    """Implements :class:`~mendwright.sandbox.base.SandboxBackend` without namespaces."""

    def __init__(self) -> None:
        self.name = "degraded"
        self.missing_walls: tuple[str, ...] = ()
        """What this kernel cannot do for it; known once a sandbox was made."""
        self._live: set[GuestSandbox] = set()
        self._is_swept = False

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh copy of the tree and a process that serves it.

        Raises:
            InputError: ``spec`` names an environment without an interpreter.
            SandboxError: the copy could not be made.
        """
        binds = find_prefixes(spec.environment)
        python = spec.environment.resolve() / "bin" / "python"
        if not self._is_swept:
            self._is_swept = True
            owner.sweep_folders(_FOLDER_KIND)
        folder = owner.make_folder(_FOLDER_KIND)
        (folder / "guest").mkdir()
        (folder / "guest" / "mend_guest").symlink_to(_GUEST_FOLDER)
        boot = [str(python), "-B", "-c", _BOOT, str(folder / "guest")]
        process = await ServingProcess.start(lambda connection: [*boot, str(connection)])
        header = {"folder": str(folder), "tree": str(spec.tree.resolve()), "python": str(python), "binds": binds}

        async def release() -> None:
            self._live.discard(sandbox)
            await _end(process, folder)

        try:
            answer = await start(process.channel, header, spec)
        except BaseException as error:
            log = process.log
            await _end(process, folder)
            if isinstance(error, SandboxLostError):
                raise SandboxLostError(
                    f"the interpreter {python} did not start ({log}); build the environment again"
                ) from error
            raise
        self.missing_walls = _missing_walls(answer["landlock_version"], answer["has_seccomp"])
        sandbox = GuestSandbox(self.name, process.channel, bool(answer["has_pytest"]), release)
        self._live.add(sandbox)
        return sandbox

    async def close(self) -> None:
        """End all sandboxes; safe to call twice."""
        for sandbox in list(self._live):
            await sandbox.close()


async def _end(process: ServingProcess, folder: Path) -> None:
    """Wait until the server has ended its processes and removed its folder."""
    await process.end()
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _missing_walls(landlock_version: int, has_seccomp: bool) -> tuple[str, ...]:
    walls = {
        "files of the host (Landlock of Linux 5.19 or newer)": landlock_version >= _LANDLOCK_FILES_VERSION,
        "signals to processes of the host (Landlock of Linux 6.12 or newer)": (
            landlock_version >= _LANDLOCK_SIGNALS_VERSION
        ),
        "sockets (seccomp on x86-64 or arm64)": has_seccomp,
    }
    return tuple(name for name, is_there in walls.items() if not is_there)
