"""The trusted process that serves one sandbox, on the host's side, and the folders that its interpreter needs.

Reads a command line, makes a :class:`ServingProcess` with a channel. Reads the symbolic links of an environment's
``bin/python``, makes the host folders that a sandbox must show. Guarantees: the process holds no descriptor of the
host except its socket and its log; it ends when the host hangs up; nothing here forks (``vfork`` and ``execve`` only),
so the size of the calling process does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.backends.images import image_files
from repairgym.sandbox.base import ImageRoot, SandboxSpec
from repairgym.sandbox.channel import Channel
from repairgym.sandbox.guest import rootfs
from repairgym.sandbox.guest_sandbox import GUEST_FOLDER
from repairgym.sandbox.system_view import SystemPaths

_END_TIMEOUT_S = 30.0
_NUM_LOG_BYTES = 4000
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_RESERVED_FOLDERS = ("/tmp", "/proc", "/dev", "/testbed", "/opt/env", "/opt/repairgym")
_MAX_LINKS = 40
_NO_IMAGE: dict[str, Any] = {"image": (), "image_files": {}, "image_links": ()}


class ServingProcess:
    """A process, the channel to it and its log."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log_fd: int) -> None:
        self._process = process
        self._log_fd = log_fd
        self.channel = channel
        self.log = ""
        """The process's standard error, at most its first 4000 bytes; known at its end."""

    @classmethod
    async def start(cls, describe: Callable[[int], list[str]]) -> ServingProcess:
        """Start the command that ``describe`` returns for the number of its socket."""
        process, ours, log_fd = _start(describe)
        try:
            return cls(process, await Channel.open(ours), log_fd)
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            os.close(log_fd)
            raise

    async def end(self) -> None:
        """Hang up and wait for the end of the process; kill it after 30 s. Call it once."""
        self.channel.close()
        try:
            await asyncio.to_thread(self._process.wait, _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self.log = os.pread(self._log_fd, _NUM_LOG_BYTES, 0).decode(errors="replace").strip()
        os.close(self._log_fd)


def _start(describe: Callable[[int], list[str]]) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Return the process, our end of its socket and a descriptor of its log."""
    ours, theirs = socket.socketpair()
    log_fd = os.memfd_create("repairgym-sandbox-log")
    try:
        with theirs:
            process = subprocess.Popen(
                describe(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_fd,
                start_new_session=True,
                cwd="/",
            )
    except BaseException:
        os.close(log_fd)
        ours.close()
        raise
    return process, ours, log_fd


def describe_layout(spec: SandboxSpec, paths: SystemPaths) -> dict[str, Any]:
    """Return the values of a :class:`~repairgym.sandbox.guest.rootfs.Layout` for ``spec`` that shows ``paths``."""
    if spec.root is not None:
        return _describe_image(spec, spec.root, paths)
    prefixes = find_interpreter_folders(spec.environment)
    view = paths.view(prefixes)
    return {
        **_NO_IMAGE,
        "environment": str(spec.environment.resolve()),
        "tree": str(spec.tree.resolve()),
        "guest": str(GUEST_FOLDER),
        "binds": view.binds,
        "folders": view.folders,
        "links": (*view.links, *_module_links(spec), *spec.links.items()),
        "mounts": tuple((str(folder.resolve()), path) for path, folder in spec.mounts.items()),
        "covers": view.covers,
        "prefixes": prefixes,
    }


def _module_links(spec: SandboxSpec) -> tuple[tuple[str, str], ...]:
    """Return the link at which node finds the packages of an environment that has some."""
    has_modules = (spec.environment / "node_modules").is_dir()
    return (("/node_modules", f"{rootfs.ENVIRONMENT}/node_modules"),) if has_modules else ()


def _describe_image(spec: SandboxSpec, root: ImageRoot, paths: SystemPaths) -> dict[str, Any]:
    """Return the values for a root over an image; the trusted process runs on this interpreter, in the host's view."""
    python = Path(sys.executable).resolve()
    prefixes = () if _is_below(str(python), _SYSTEM_FOLDERS) else (str(python.parent.parent),)
    view = paths.view(prefixes)
    return {
        "environment": "",
        "tree": str(spec.tree.resolve()),
        "guest": str(GUEST_FOLDER),
        "binds": view.binds,
        "folders": view.folders,
        "links": (*view.links, (rootfs.PYTHON, str(python))),
        "mounts": (),
        "covers": view.covers,
        "prefixes": prefixes,
        "image": [str(layer) for layer in root.layers],
        "image_files": image_files(root),
        "image_links": tuple(spec.links.items()),
    }


def find_interpreter_folders(environment: Path) -> tuple[str, ...]:
    """Return the folders of :func:`find_prefixes` for a sandbox with its own root.

    Raises:
        InputError: ``environment`` has no interpreter.
        SandboxError: the interpreter lies in a folder that the sandbox replaces.
    """
    folders = find_prefixes(environment)
    reserved = [folder for folder in folders if folder == "/" or _is_below(folder, _RESERVED_FOLDERS)]
    if reserved:
        raise SandboxError(
            f"the interpreter of {environment} lies in {reserved[0]}, which a sandbox replaces; "
            "build the environment with an interpreter installed elsewhere"
        )
    return folders


def find_prefixes(environment: Path) -> tuple[str, ...]:
    """Return the prefix folders of the interpreter behind a virtual environment, except those below ``/usr``."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise InputError(f"got {environment}, expected a virtual environment with bin/python; build it again")
    shown = (*_SYSTEM_FOLDERS, str(environment))
    outside = sorted({str(link.parent.parent) for link in _links(python) if not _is_below(str(link), shown)})
    return tuple(p for p in outside if not any(p != other and _is_below(p, (other,)) for other in outside))


def _links(path: Path) -> list[Path]:
    """Return ``path``, each link that it leads through, and last the real path with all folders resolved."""
    chain = []
    for _ in range(_MAX_LINKS):
        chain.append(path)
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return [*chain, path.resolve()]


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
