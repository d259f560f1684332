"""A start that fails for want of a process ends nothing but itself."""

import os
import resource
import socket

import pytest

from repairgym.sandbox.guest import spawner, wire, zygote


def run_as_nobody(check):
    """Run ``check`` in a child that is no root and may start no process; return True when it does not fail."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def spawn():
    host, control = socket.socketpair()
    log = os.memfd_create("log")
    spawner._fork_zygote({}, control.detach(), os.dup(log), host, -1)
    assert b"no process could be started" in os.pread(log, 1000, 0)
    assert host.recv(1) == b""


def fork():
    control, _host = socket.socketpair()
    theirs, ours = socket.socketpair()
    server = zygote.Zygote(control)
    server._fork({"op": "fork", "id": 1, "accounting": []}, [theirs.fileno()])
    answer, _ = wire.receive(ours)
    assert "error" in answer
    assert server._sandboxes == {}


@pytest.mark.parametrize("check", [spawn, fork])
def test_a_failed_start_is_answered_and_survived(check):
    assert run_as_nobody(check)
