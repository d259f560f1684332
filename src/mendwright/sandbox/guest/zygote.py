"""The zygote: the first process of an environment's namespaces, with pytest imported, from which sandboxes are forked.

Reads one message with descriptors per request (the first one is the sandbox's socket) from its control socket, makes
sandboxes. Runs on the environment's
interpreter. Invariants: it never runs code of the tree; each sandbox has its own pid namespace; when the control socket
closes the zygote ends, and the kernel ends every sandbox with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from typing import Any, Callable, Dict, List, Optional

from . import isolation, rootfs, server, syscalls, wire
from .accounting import Accounting, open_accounting
from .reaping import NamespaceReaper

_REQUEST_BYTES = 1 << 16
_MAX_FDS = 16
RunTests = Callable[[bytes, str], int]


def _load_pytest() -> Optional[RunTests]:
    """Import and exercise pytest, so that a fork finds everything loaded; None when the environment has none."""
    try:
        from . import pytest_runner
    except ModuleNotFoundError:
        return None
    pytest_runner.warm_up()
    return pytest_runner.main


def _serve_sandbox(connection: socket.socket, accounting: Accounting, run_warm: Optional[RunTests]) -> None:
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        header, _ = wire.receive(connection)
        layers = isolation.isolate(header["limits"], header["files"])
        place = server.Place(
            testbed=rootfs.TESTBED,
            python=isolation.PYTHON,
            guest=os.path.dirname(rootfs.GUEST),
            environment=dict(os.environ),
            before=layers.before,
            upper=layers.upper,
            reaper=NamespaceReaper(),
            confine=isolation.confine,
            run_warm=run_warm,
            accounting=accounting,
        )
    except EOFError:
        return
    except Exception as error:
        wire.send(connection, wire.describe_error(error))
        return
    wire.send(connection, {})
    server.Server(connection, place, header["limits"]).serve()


def _fork_sandbox(
    control: socket.socket,
    request: Dict[str, Any],
    fds: List[int],
    own_pid_namespace: int,
    run_warm: Optional[RunTests],
) -> None:
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            os.close(own_pid_namespace)
            accounting = open_accounting(request["accounting"], fds[1:])
            _serve_sandbox(socket.socket(fileno=fds[0]), accounting, run_warm)
        finally:
            os._exit(0)
    for fd in fds:
        os.close(fd)
    # A process can leave for a new pid namespace only from the one it lives in.
    syscalls.setns(own_pid_namespace, syscalls.CLONE_NEWPID)


def main(control_fd: int) -> None:
    """Serve the control socket ``control_fd`` until it closes."""
    control = socket.socket(fileno=control_fd)
    run_warm = _load_pytest()
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    wire.send(control, {"has_pytest": run_warm is not None})
    while True:
        # Each message brings a descriptor, and the kernel never joins such messages.
        message, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES, _MAX_FDS)
        if not message:
            return
        _fork_sandbox(control, json.loads(message), fds, own_pid_namespace, run_warm)
