"""The resident spawner: a small process that starts one zygote per (environment, tree), each in its own namespaces.

Reads requests (:data:`START`) with three descriptors from the host: control socket, log, and a file with a
:class:`.rootfs.Layout`. Makes zygotes. Runs on the host's interpreter with ``-I -S``. Guarantees: it holds no code of
a task; it ends, with every zygote, when the host closes the socket or dies.

Identity: an ordinary user becomes root of its own user namespace. Real root maps an unused id instead, because a
process that is user 0 outside could write ``/proc/sys`` without any capability.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any, Dict

from . import reaping, rootfs, syscalls, wire

UNUSED_HOST_ID = 1_900_000_000
"""Host user and group that a zygote started by root becomes."""
START = b"start"
"""A request."""
OOM_SCORE = 800
"""Least ``oom_score_adj`` of the processes in a sandbox."""
_BOOT = (
    "import sys; sys.path.insert(0, '/opt/repairgym'); from repairgym_guest.zygote import main; main(int(sys.argv[1]))"
)
GUEST_ENVIRONMENT = {
    "PATH": "/opt/env/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": rootfs.USER,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PIP_NO_INDEX": "1",
    "UV_OFFLINE": "1",
}


def write_id_maps(process: str, inner: int, user: int, group: int) -> None:
    """Map ``inner`` of the new user namespace of ``process`` (a ``/proc`` folder) to one user and one group."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inner} {user} 1"),
        ("gid_map", f"{inner} {group} 1"),
    ):
        with open(f"{process}/{name}", "w") as file:
            file.write(text)


def _unused_user_namespace() -> int:
    """Make a user namespace whose root is :data:`UNUSED_HOST_ID` and return its descriptor; needs real root."""
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(ready_write, b".")
        signal.pause()
    try:
        os.close(ready_write)
        if not os.read(ready_read, 1):
            raise OSError("the helper process could not make a user namespace")
        write_id_maps(f"/proc/{pid}", 0, UNUSED_HOST_ID, UNUSED_HOST_ID)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def enter_as_root(layout: rootfs.Layout) -> str:
    """Assemble the root and become the unused user, root of a user namespace; return the root's path."""
    os.setgroups([])
    userns_fd = _unused_user_namespace()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    root = rootfs.assemble(layout, userns_fd, UNUSED_HOST_ID)
    syscalls.setns(userns_fd, syscalls.CLONE_NEWUSER)
    os.close(userns_fd)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.set_dumpable(True)
    return root


def _enter_as_user(layout: rootfs.Layout) -> str:
    user, group = os.getuid(), os.getgid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    write_id_maps("/proc/self", 0, user, group)
    return rootfs.assemble(layout, None, None)


def _start_zygote(layout: rootfs.Layout, control: int, log: int) -> None:
    """Become the parent of a zygote; return when it has ended."""
    syscalls.set_parent_death_signal(signal.SIGKILL)
    root = enter_as_root(layout) if os.getuid() == 0 else _enter_as_user(layout)
    syscalls.set_parent_death_signal(signal.SIGKILL)
    syscalls.unshare(syscalls.CLONE_NEW_OTHERS | syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _exec_zygote(root, control, log)
    os.close(control)
    os.waitpid(pid, 0)


def _exec_zygote(root: str, control: int, log: int) -> None:
    try:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        rootfs.enter(root)
        _raise_oom_score()
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.set_inheritable(control, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(rootfs.PYTHON, [rootfs.PYTHON, "-B", "-c", _BOOT, str(control)], GUEST_ENVIRONMENT)
    except BaseException as error:
        _report_failure(control, error)


def _raise_oom_score() -> None:
    """Make the kernel end sandboxes before the training process when memory runs out.

    A higher score of the host (Ray's workers have one) stays: where root has set it, it cannot be lowered here.
    """
    with open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), OOM_SCORE)
        file.seek(0)
        file.write(str(score))


def _report_failure(control: int, error: BaseException) -> None:
    """Tell the host why there is no zygote, and end."""
    with contextlib.suppress(OSError), socket.socket(fileno=control) as connection:
        wire.send(connection, wire.describe_error(error))
    os._exit(1)


def _fork_zygote(request: Dict[str, Any], control: int, log: int, host: socket.socket, host_pidfd: int) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        # A machine without room for another process loses this start, not the zygotes that live.
        os.write(log, f"no process could be started: {error}".encode())
        pid = -1
    if pid != 0:
        os.close(control)
        os.close(log)
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        host.close()
        os.close(host_pidfd)
        _start_zygote(rootfs.Layout(**request), control, log)
        os._exit(0)
    except BaseException as error:
        _report_failure(control, error)


def main(host_fd: int, host_pid: int, folders: str) -> None:
    """Serve the host until it is gone, then remove its control groups (``folders``: a JSON list).

    When the host is killed, only this process is left to do that.
    """
    try:
        _serve(socket.socket(fileno=host_fd), syscalls.pidfd_open(host_pid))
    finally:
        for folder in json.loads(folders):
            reaping.remove_group(folder)


def _serve(host: socket.socket, host_pidfd: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(host_pidfd, select.POLLIN)
    while True:
        if host_pidfd in dict(poll.poll()):
            return
        # Small, because the kernel cuts a message where its descriptors come; a layout can be as long as a file.
        message, fds = wire.receive_fds(host, len(START), 3)
        if not message:
            return
        control, log, layout = fds
        with open(layout, encoding="utf-8") as file:
            request = json.load(file)
        _fork_zygote(request, control, log, host, host_pidfd)
