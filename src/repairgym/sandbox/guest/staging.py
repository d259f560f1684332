"""The mounts of a bubblewrap sandbox, prepared in their own mount namespace; the process then becomes bwrap.

Reads one JSON argument from the host and the ``start`` frame from its socket; mounts the read-only root of
:mod:`.rootfs`, one tmpfs of bounded size for all writable files, and the copy-on-write testbed; then becomes
bwrap, whose first process is :mod:`.contained`. Runs on the host's interpreter with ``-I -S``. Guarantees: it runs no
code of a task; its mounts are invisible outside of its mount namespace and do not outlive it; the program it becomes
has no capability and is an unprivileged user, also when the host is root.

The writable parts are mounted here because bwrap below 0.11 mounts no overlays, and its tmpfs overlays have no size
bound in any version.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from . import isolation, rootfs, spawner, syscalls, wire

_INNER_ID = "1000"
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_BOOT = "import sys; sys.path.insert(0, '/opt/repairgym'); from repairgym_guest.contained import main; main()"
_NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup-try")


class Testbed(NamedTuple):
    """The writable parts of one sandbox, as host paths below the staged root."""

    before: str
    """The tree with the sandbox's files written over it."""
    upper: str
    arguments: List[str]
    """Arguments that make bwrap show ``/testbed``."""


def main() -> None:
    """Stage the sandbox that the first argument describes and become bwrap; report a failure to the host."""
    request = json.loads(sys.argv[1])
    connection = socket.socket(fileno=request["connection"])
    try:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        header, _ = wire.receive(connection)
        # Opened now: the staged root covers /tmp.
        bwrap = os.open(request["bwrap"], os.O_PATH | os.O_CLOEXEC)
        root = _enter(rootfs.Layout(**request["layout"]), request["is_root"])
        testbed = mount_testbed(root, header["limits"], header["files"], request["has_overlay"])
        served = {
            "connection": connection.fileno(),
            "before": _hold(testbed.before),
            "upper": _hold(testbed.upper),
            "limits": header["limits"],
        }
        os.set_inheritable(connection.fileno(), True)
        os.execve(bwrap, bwrap_arguments(root, testbed.arguments, json.dumps(served)), {})
    except EOFError:
        return
    except Exception as error:
        wire.send(connection, wire.describe_error(error))


def _enter(layout: rootfs.Layout, is_root: bool) -> str:
    """Assemble the root in a mount namespace that this process may change; return its path.

    For an ordinary user, an outer bwrap has already made this process root of a user namespace, because some security
    modules let only bwrap make one. Real root becomes an unprivileged user first.
    """
    if not is_root:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        return rootfs.assemble(layout, None, None)
    root = spawner.enter_as_root(layout)
    syscalls.set_parent_death_signal(signal.SIGKILL)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    return root


def mount_testbed(root: str, limits: Dict[str, Any], files: Dict[str, Optional[str]], has_overlay: bool) -> Testbed:
    """Mount the writable parts below ``root``; the overlay of the testbed only when bwrap cannot."""
    scratch, tree, before = root + rootfs.SCRATCH, root + rootfs.TREE, root + rootfs.TREE
    _mount_scratch(scratch, limits["disk_bytes"])
    layers = [tree]
    if files:
        isolation.write_layer(f"{scratch}/files", tree, files)
        layers, before = [f"{scratch}/files", tree], root + rootfs.START
        options = f"lowerdir={':'.join(layers)},userxattr"
        syscalls.mount("repairgym", before, "overlay", _FLAGS | syscalls.MS_RDONLY, options)
    upper, work, target = f"{scratch}/upper", f"{scratch}/work", root + rootfs.TESTBED
    os.chmod(upper, stat.S_IMODE(os.stat(tree).st_mode) | 0o700)
    if has_overlay:
        sources = [argument for layer in reversed(layers) for argument in ("--overlay-src", layer)]
        return Testbed(before, upper, [*sources, "--overlay", upper, work, rootfs.TESTBED])
    options = f"lowerdir={':'.join(layers)},upperdir={upper},workdir={work},userxattr"
    syscalls.mount("repairgym", target, "overlay", _FLAGS, options)
    return Testbed(before, upper, ["--bind", target, rootfs.TESTBED])


def _mount_scratch(scratch: str, disk_bytes: int) -> None:
    rootfs.mount_scratch(scratch, disk_bytes)
    for name in ("upper", "work", "files", "tmp", "shm"):
        os.mkdir(f"{scratch}/{name}")
    for name in ("tmp", "shm"):
        os.chmod(f"{scratch}/{name}", 0o1777)


def _hold(folder: str) -> int:
    """Open an inheritable descriptor of ``folder``."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(fd, True)
    return fd


def bwrap_arguments(root: str, testbed: List[str], served: str) -> List[str]:
    """Return the command line of bwrap; later mounts cover earlier ones, sources are paths of the staged root."""
    scratch = root + rootfs.SCRATCH
    arguments = ["bwrap", *(f"--unshare-{name}" for name in _NAMESPACES)]
    arguments += ["--uid", _INNER_ID, "--gid", _INNER_ID, "--hostname", "repairgym", "--cap-drop", "ALL", "--clearenv"]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session"]
    for name, value in spawner.GUEST_ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += ["--ro-bind", root, "/", "--proc", "/proc", "--remount-ro", "/proc"]
    # bwrap's /dev is a tmpfs without a bound.
    arguments += ["--dev", "/dev", "--bind", f"{scratch}/shm", "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--bind", f"{scratch}/tmp", "/tmp", *testbed]
    arguments += ["--tmpfs", rootfs.PRIVATE, "--remount-ro", rootfs.PRIVATE, "--chdir", rootfs.TESTBED]
    return [*arguments, "--", isolation.PYTHON, "-B", "-c", _BOOT, served]
