"""The back end that isolates with bubblewrap (``bwrap``), for machines that grant namespaces to it alone.

Reads :class:`~repairgym.sandbox.base.SandboxSpec`, makes one bwrap per sandbox, see `guest/contained.py`. Guarantees:
nothing inside has a capability, the trusted process included; as root everything runs as an otherwise unused user;
sandboxes die with the process that made them. Tests always run cold.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from repairgym.errors import SandboxError, SandboxLostError, SandboxUnavailableError
from repairgym.sandbox.backends.guest_process import ServingProcess, describe_layout
from repairgym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from repairgym.sandbox.guest_sandbox import GUEST_FOLDER, GuestBackend, reject_mounts, reject_root
from repairgym.sandbox.system_view import SystemPaths

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from guest.contained import stage; stage()"
_OVERLAY_VERSION = (0, 11)
"""The first version that mounts overlays itself."""
_OLDEST_VERSION = (0, 5)
"""The first version with ``--clearenv``."""


class BubblewrapBackend(GuestBackend):
    """Implements :class:`~repairgym.sandbox.base.SandboxBackend` with ``program``, the name or path of bwrap."""

    def __init__(self, program: str = "bwrap", paths: SystemPaths | None = None) -> None:
        super().__init__("bubblewrap")
        self._paths = paths or SystemPaths()
        self._program = program
        self._version: tuple[int, ...] = ()

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """See :meth:`repairgym.sandbox.base.SandboxBackend.create`; this back end has no snapshots."""
        self._check(spec, snapshot)
        reject_root(self.name, spec)
        reject_mounts(self.name, spec)
        reject_mounts(self.name, spec)
        path = find_program(self._program)
        self._version = self._version or read_version(path)
        layout = describe_layout(spec, self._paths)
        process = await ServingProcess.start(_command(path, self._version >= _OVERLAY_VERSION, layout))
        try:
            sandbox, _ = await self._open(process.channel, {}, spec, process.end)
        except SandboxLostError as error:
            raise explain(process.log) from error
        return sandbox


def find_program(name: str) -> str:
    """Return the absolute path of ``name``; raise ``SandboxUnavailableError`` when it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise SandboxUnavailableError(f"the program {name} is not installed")
    return os.path.realpath(path)


def read_version(path: str) -> tuple[int, ...]:
    """Return the version of the bwrap at ``path``, e.g. ``(0, 8, 0)``; raise when it is unknown or too old."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailableError(f"{path} does not run: {error}") from error
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    version = tuple(int(part) for part in match.groups(default="0")) if match else ()
    if version < _OLDEST_VERSION:
        raise SandboxUnavailableError(f"got bubblewrap {done.stdout.strip() or '?'}, expected 0.5 or newer")
    return version


def _command(bwrap: str, has_overlay: bool, layout: dict[str, Any]) -> Callable[[int], list[str]]:
    """Return a function from the number of the socket to the command line of one sandbox."""
    is_root = os.getuid() == 0

    def arguments(connection: int) -> list[str]:
        request = {"bwrap": bwrap, "has_overlay": has_overlay, "is_root": is_root, "layout": layout}
        text = json.dumps({**request, "connection": connection})
        stage = [sys.executable, "-I", "-S", "-c", _BOOT, str(GUEST_FOLDER.parent), text]
        if is_root:
            return stage
        # The mounts need a user namespace, and on some machines only bwrap may make one.
        outer = ["--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--dev-bind", "/", "/"]
        return [bwrap, *outer, "--die-with-parent", "--", *stage]

    return arguments


def explain(log: str) -> SandboxError:
    """Return the error for a process that ended before the sandbox was ready."""
    if "bwrap:" in log:
        return SandboxUnavailableError(
            f"bubblewrap cannot make a sandbox here: {log}; 'repairgym doctor' says what to change"
        )
    return SandboxError(f"the environment's interpreter did not start: {log or 'no message'}")
