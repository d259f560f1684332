"""The trusted process of a sandbox that another program isolates (bubblewrap, a container engine).

Reads the connection to the host from its argument, makes a :class:`.server.Server` over ``/testbed``. It has no
capability and the same user as untrusted code. Guarantees: it is the first process of its pid namespace, so untrusted
code can neither end it nor outlive it; it is not dumpable, so untrusted code reads neither its memory nor its
descriptors; the start tree is reached through a descriptor only, never by a path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from typing import Any, Dict, Optional

from . import isolation, rootfs, server, syscalls, wire
from .reaping import NamespaceReaper
from .spawner import GUEST_ENVIRONMENT

_WHOLE_USER_NAMESPACE = ["0", "0", "4294967295"]
"""The id map of the host's user namespace."""
_GIT_TRUST = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""In a container ``/testbed`` itself belongs to root, and git would reject it."""


def become_trusted() -> None:
    """Protect this process from untrusted processes of the same user.

    Raises:
        RuntimeError: this is not the first process of a pid namespace.
    """
    if os.getpid() != 1:
        raise RuntimeError(f"got process id {os.getpid()}, expected 1: this sandbox has no pid namespace of its own")
    syscalls.set_undumpable()
    # The kernel drops signals without a handler for the first process; Python installs a handler for SIGINT.
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)


def describe_place(before: str, upper: Optional[str], environment: Dict[str, str]) -> server.Place:
    """Return the place of the calling process; ``before`` and ``upper`` are ``/proc/self/fd`` paths."""
    return server.Place(
        testbed=rootfs.TESTBED,
        python=isolation.PYTHON,
        guest=os.path.dirname(rootfs.GUEST),
        environment=environment,
        before=before,
        upper=upper,
        reaper=NamespaceReaper(),
        confine=isolation.confine,
        run_warm=None,
    )


def serve(connection: socket.socket, place: server.Place, limits: Dict[str, Any]) -> None:
    """Report that the sandbox is ready, then answer until the host hangs up."""
    wire.send(connection, {"has_pytest": importlib.util.find_spec("pytest") is not None})
    server.Server(connection, place, limits).serve()


def main() -> None:
    """Serve inherited descriptors; the argument is JSON ``{"connection", "before", "upper", "limits"}``."""
    request = json.loads(sys.argv[1])
    connection = socket.socket(fileno=request["connection"])
    for name in ("connection", "before", "upper"):
        os.set_inheritable(request[name], False)
    try:
        become_trusted()
        before, upper = (f"/proc/self/fd/{request[name]}" for name in ("before", "upper"))
        place = describe_place(before, upper, dict(os.environ))
    except Exception as error:
        wire.send(connection, wire.describe_error(error))
        return
    serve(connection, place, request["limits"])


def _confine_in_container(limits: Dict[str, Any]) -> None:
    with open("/proc/self/uid_map") as file:
        is_host_user = file.read().split() == _WHOLE_USER_NAMESPACE
    # For a host user, RLIMIT_NPROC would count processes of the host's user 1000; the engine bounds the container's.
    isolation.confine({**limits, "num_processes": None} if is_host_user else limits)


def _copy_tree(source: str, target: str) -> None:
    """Fill ``target``, which exists and belongs to another user."""
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, f"{target}/{entry.name}", symlinks=True)
            else:
                shutil.copy2(entry.path, f"{target}/{entry.name}", follow_symlinks=False)


def main_in_container(path: str) -> None:
    """Serve the host that listens on the socket at ``path`` and sends the start tree as a descriptor."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    try:
        _, fds, _, _ = socket.recv_fds(connection, 1, 1)
        become_trusted()
        header, _ = wire.receive(connection)
        before = f"/proc/self/fd/{fds[0]}"
        _copy_tree(before, rootfs.TESTBED)
        place = describe_place(before, None, {**GUEST_ENVIRONMENT, **_GIT_TRUST})
    except EOFError:
        return
    except Exception as error:
        wire.send(connection, wire.describe_error(error))
        return
    serve(connection, place._replace(confine=_confine_in_container), header["limits"])
