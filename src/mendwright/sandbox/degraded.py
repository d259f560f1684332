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
import subprocess
import tempfile
from pathlib import Path

from mendwright.errors import InputError, SandboxLostError
from mendwright.sandbox.base import Sandbox, SandboxSpec
from mendwright.sandbox.channel import Channel
from mendwright.sandbox.guest_sandbox import GuestSandbox, start
from mendwright.sandbox.namespace import GUEST_FOLDER

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from mend_guest.local import main; main()"


class DegradedBackend:
    """Implements :class:`~mendwright.sandbox.base.SandboxBackend` without isolation."""

    def __init__(self) -> None:
        self.name = "degraded"
        self._live: set[GuestSandbox] = set()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh copy of the tree and a process that serves it.

        Raises:
            InputError: ``spec`` names an environment without an interpreter.
            SandboxError: the copy could not be made.
        """
        python = spec.environment.resolve() / "bin" / "python"
        if not python.exists():
            raise InputError(f"got {spec.environment}, expected a virtual environment with bin/python; build it again")
        folder = Path(tempfile.mkdtemp(prefix="mend-"))
        (folder / "mend_guest").symlink_to(GUEST_FOLDER)
        ours, process = _start_server(python, folder)
        channel = await Channel.open(ours)
        header = {"folder": str(folder), "tree": str(spec.tree.resolve()), "python": str(python)}

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
        sandbox = GuestSandbox(self.name, channel, bool(answer["has_pytest"]), release)
        self._live.add(sandbox)
        return sandbox

    async def close(self) -> None:
        """End all sandboxes; safe to call twice."""
        for sandbox in list(self._live):
            await sandbox.close()


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
