"""The trusted process of a sandbox that another program isolates: bubblewrap, or a container engine.

Makes a :class:`.server.Server` over ``/testbed``. Guarantees: the process has no capability and the same user as
untrusted code; it is the first process of its pid namespace, so untrusted code can neither end it nor outlive it; it is
not dumpable, so untrusted code reads neither its memory nor its descriptors; the start tree is reached through a
descriptor only, never by a path.

For bubblewrap, :func:`stage` runs first, on the host's interpreter with ``-I -S``: in its own mount namespace it mounts
the read-only root of :mod:`.rootfs`, one tmpfs of bounded size for all writable files, and the copy-on-write testbed,
because bwrap below 0.11 mounts no overlays, and its tmpfs overlays have no size bound in any version. Then it becomes
bwrap, without a capability and as an unprivileged user, also when the host is root. It runs no code of a task, and its
mounts are invisible outside of its mount namespace and do not outlive it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import stat
import sys
from typing import Any, Dict, List, Optional, Tuple

from . import confinement, isolation, rootfs, server, spawner, syscalls, wire

_WHOLE_USER_NAMESPACE = ["0", "0", "4294967295"]
"""The id map of the host's user namespace."""
_GIT_TRUST = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""In a container ``/testbed`` itself belongs to root, and git would reject it."""
_INNER_ID = "1000"
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_BOOT = "import sys; sys.path.insert(0, '/opt/repairgym'); from repairgym_guest.contained import main; main()"
_NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup-try")


def _become_trusted() -> None:
    """Protect this process, the first of a pid namespace, from untrusted processes of the same user."""
    if os.getpid() != 1:
        raise RuntimeError(f"got process id {os.getpid()}, expected 1: this sandbox has no pid namespace of its own")
    syscalls.set_dumpable(False)
    # The kernel drops signals without a handler for the first process; Python installs a handler for SIGINT.
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)


def _serve(connection: socket.socket, place: server.Place, limits: Dict[str, Any]) -> None:
    """Report that the sandbox is ready, then answer until the host hangs up."""
    wire.send(connection, {"has_pytest": importlib.util.find_spec("pytest") is not None})
    server.Server(connection, place, limits).serve()


# --- in a container -----------------------------------------------------------------------------------------------


def main_in_container(path: str) -> None:
    """Serve the host that listens on the socket at ``path`` and sends the start tree as a descriptor."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with wire.reporting(connection):
        _, fds = wire.receive_fds(connection, 1, 1)
        _become_trusted()
        header, _ = wire.receive(connection)
        before = f"/proc/self/fd/{fds[0]}"
        _copy_tree(before, rootfs.TESTBED)
        environment = {**spawner.GUEST_ENVIRONMENT, **_GIT_TRUST}
        _serve(connection, server.Place(environment, before, confine=_confine_in_container), header["limits"])


def _confine_in_container(limits: Dict[str, Any]) -> None:
    with open("/proc/self/uid_map") as file:
        is_host_user = file.read().split() == _WHOLE_USER_NAMESPACE
    # For a host user, RLIMIT_NPROC would count processes of the host's user 1000; the engine bounds the container's.
    confinement.confine({**limits, "num_processes": None} if is_host_user else limits)


def _copy_tree(source: str, target: str) -> None:
    """Fill ``target``, which exists and belongs to another user."""
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, f"{target}/{entry.name}", symlinks=True)
            else:
                shutil.copy2(entry.path, f"{target}/{entry.name}", follow_symlinks=False)


# --- in bubblewrap ------------------------------------------------------------------------------------------------


def stage() -> None:
    """Stage the sandbox that the first argument (JSON) describes and become bwrap; report a failure to the host."""
    request = json.loads(sys.argv[1])
    connection = socket.socket(fileno=request["connection"])
    with wire.reporting(connection):
        syscalls.set_parent_death_signal(signal.SIGKILL)
        header, _ = wire.receive(connection)
        # Opened now: the staged root covers /tmp.
        bwrap = os.open(request["bwrap"], os.O_PATH | os.O_CLOEXEC)
        root = _enter(rootfs.Layout(**request["layout"]), request["is_root"])
        before, upper, arguments = _mount_testbed(root, header["limits"], header["files"], request["has_overlay"])
        fds = {
            name: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for name, path in (("before", before), ("upper", upper))
        }
        fds["connection"] = connection.fileno()
        for fd in fds.values():
            os.set_inheritable(fd, True)
        served = json.dumps({**fds, "limits": header["limits"]})
        os.execve(bwrap, bwrap_arguments(root, arguments, served), {})


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


def _mount_testbed(
    root: str, limits: Dict[str, Any], files: Dict[str, Optional[str]], has_overlay: bool
) -> Tuple[str, str, List[str]]:
    """Mount the writable parts below ``root``; the overlay of the testbed only when bwrap cannot.

    Returns the tree at the start, the upper layer, and the arguments that make bwrap show ``/testbed``.
    """
    scratch, tree, before = root + rootfs.SCRATCH, root + rootfs.TREE, root + rootfs.TREE
    rootfs.mount_scratch(scratch, limits["disk_bytes"])
    for name in ("upper", "work", "files", "tmp", "shm"):
        os.mkdir(f"{scratch}/{name}")
    for name in ("tmp", "shm"):
        os.chmod(f"{scratch}/{name}", 0o1777)
    layers = [tree]
    if files:
        isolation.write_layer(f"{scratch}/files", tree, files)
        layers, before = [f"{scratch}/files", tree], root + rootfs.START
        options = f"lowerdir={':'.join(layers)},userxattr"
        syscalls.mount("overlay", before, "overlay", _FLAGS | syscalls.MS_RDONLY, options)
    upper, work, target = f"{scratch}/upper", f"{scratch}/work", root + rootfs.TESTBED
    os.chmod(upper, stat.S_IMODE(os.stat(tree).st_mode) | 0o700)
    if has_overlay:
        sources = [argument for layer in reversed(layers) for argument in ("--overlay-src", layer)]
        return before, upper, [*sources, "--overlay", upper, work, rootfs.TESTBED]
    options = f"lowerdir={':'.join(layers)},upperdir={upper},workdir={work},userxattr"
    syscalls.mount("overlay", target, "overlay", _FLAGS, options)
    return before, upper, ["--bind", target, rootfs.TESTBED]


def bwrap_arguments(root: str, testbed: List[str], served: str) -> List[str]:
    """Return the command line of bwrap; later mounts cover earlier ones, sources are paths of the staged root."""
    scratch = root + rootfs.SCRATCH
    arguments = ["bwrap", *(f"--unshare-{name}" for name in _NAMESPACES)]
    arguments += [
        "--uid",
        _INNER_ID,
        "--gid",
        _INNER_ID,
        "--hostname",
        rootfs.HOST_NAME,
        "--cap-drop",
        "ALL",
        "--clearenv",
    ]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session"]
    for name, value in spawner.GUEST_ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += ["--ro-bind", root, "/", "--proc", "/proc", "--remount-ro", "/proc"]
    # bwrap's /dev is a tmpfs without a bound.
    arguments += ["--dev", "/dev", "--bind", f"{scratch}/shm", "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--bind", f"{scratch}/tmp", "/tmp", *testbed]
    arguments += ["--tmpfs", rootfs.PRIVATE, "--remount-ro", rootfs.PRIVATE, "--chdir", rootfs.TESTBED]
    return [*arguments, "--", rootfs.PYTHON, "-B", "-c", _BOOT, served]


def main() -> None:
    """Serve inherited descriptors; the first argument is what :func:`stage` says of them."""
    request = json.loads(sys.argv[1])
    connection = socket.socket(fileno=request["connection"])
    for name in ("connection", "before", "upper"):
        os.set_inheritable(request[name], False)
    with wire.reporting(connection):
        _become_trusted()
        before, upper = (f"/proc/self/fd/{request[name]}" for name in ("before", "upper"))
        _serve(connection, server.Place(dict(os.environ), before, lambda: (upper,)), request["limits"])
