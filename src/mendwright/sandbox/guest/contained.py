"""The trusted process of a sandbox whose walls somebody else drew (bubblewrap, a container engine).

Reads how to reach the host from its argument, makes a :class:`.server.Server` over ``/testbed``. It has no capability
and the same user as untrusted code. Invariants: it is the first process of its pid namespace, so untrusted code can
neither end it nor outlive it; it is not dumpable, so untrusted code reads neither its memory nor its descriptors; the
tree as it was at the start is reached through a descriptor only, never by a path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
from typing import Any, Dict, Optional

from . import isolation, rootfs, server, syscalls, wire
from .reaping import NamespaceReaper


def become_trusted() -> None:
    """Shut this process off from untrusted processes of the same user.

    Raises:
        RuntimeError: this is not the first process of a pid namespace.
    """
    if os.getpid() != 1:
        raise RuntimeError(f"got process id {os.getpid()}, expected 1: this sandbox has no pid namespace of its own")
    syscalls.set_undumpable()
    # The kernel keeps signals without a handler away from the first process; Python installs one for SIGINT.
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)


def describe_place(before: str, upper: Optional[str], environment: Dict[str, str]) -> server.Place:
    """The place of the calling process; ``before`` and ``upper`` are ``/proc/self/fd`` paths."""
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
    """Say that the sandbox is ready, then answer until the host hangs up."""
    wire.send(connection, {"has_pytest": importlib.util.find_spec("pytest") is not None})
    server.Server(connection, place, limits).serve()


def main() -> None:
    """Serve descriptors that were inherited; the argument is JSON ``{"connection", "before", "upper", "limits"}``."""
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
