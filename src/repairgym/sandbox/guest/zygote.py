"""The zygote: the first process of an environment's namespaces, with pytest imported, from which sandboxes are forked.

Reads one message with descriptors per request (the first one is the sandbox's socket) from its control socket, makes
sandboxes. Runs on the environment's interpreter. Guarantees: it never runs code of the tree; each sandbox has its own
pid namespace; when the control socket closes, the zygote ends and the kernel ends every sandbox with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import struct
from typing import Any, Callable, Dict, List, Optional

from . import image_server, isolation, rootfs, server, syscalls, wire
from .isolation import Lineage
from .reaping import Accounting
from .runners import start

_REQUEST_BYTES = 1 << 16
_MAX_FDS = 16
_BACKLOG = 64


def _serve_sandbox(connection: socket.socket, accounting: Accounting) -> None:
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    with wire.reporting(connection):
        header, _ = wire.receive(connection)
        # Taken out: the tests' process, a fork of this one, must not find texts of tests on its stack.
        line = Lineage.parse(header["lineage"])
        before, branch = isolation.isolate(header["limits"], header.pop("files"), line)
        place = server.Place(
            environment=header["variables"] if line.num_layers else dict(os.environ),
            before=before,
            layers=branch.layers,
            run_warm=start.main,
            root=rootfs.COMMANDS_ROOT if line.num_layers else "/",
            accounting=accounting,
            operations={"freeze": branch.freeze},
        )
        wire.send(connection, {})
        serve = image_server.ImageServer if line.num_layers else server.Server
        serve(connection, place, header["limits"]).serve()


class Zygote:
    """The server of the host's requests; each brings descriptors, the first one a socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._own_mount_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._own_network_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._sandboxes: Dict[int, int] = {}
        self._snapshots: Dict[int, int] = {}
        self._operations: Dict[str, Callable[[Dict[str, Any], List[int]], None]] = {
            "fork": self._fork,
            "remount": self._remount,
            "listen": self._listen,
            "drop": self._drop,
        }

    def serve(self) -> None:
        """Answer until the control socket closes."""
        while True:
            # Each message brings a descriptor, and the kernel never joins such messages.
            message, fds = wire.receive_fds(self._control, _REQUEST_BYTES, _MAX_FDS)
            if not message:
                return
            request = json.loads(message)
            self._operations[request["op"]](request, fds)
            for fd in fds:
                os.close(fd)

    def _fork(self, request: Dict[str, Any], fds: List[int]) -> None:
        """Fork a sandbox into a new pid namespace, from the mount namespace of the requested snapshot if any."""
        try:
            pid = self._fork_inside()
        except OSError as error:
            # A machine without room for another process loses this start, not the sandboxes that live.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fds[0])) as connection:
                wire.send(connection, wire.describe_error(error))
            return
        if pid == 0:
            try:
                self._become_child(request.get("snapshot"))
                _serve_sandbox(socket.socket(fileno=fds[0]), Accounting(request["accounting"], fds[1:]))
            finally:
                os._exit(0)
        self._sandboxes[request["id"]] = pid
        # Another new pid namespace can be made only from the own one.
        syscalls.setns(self._own_pid_namespace, syscalls.CLONE_NEWPID)

    def _fork_inside(self) -> int:
        """Fork into a new pid namespace; where that fails, later children have the own one."""
        syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            return os.fork()
        except OSError:
            syscalls.setns(self._own_pid_namespace, syscalls.CLONE_NEWPID)
            raise

    def _become_child(self, snapshot: Optional[int]) -> None:
        if snapshot is not None:
            syscalls.setns(self._snapshots[snapshot], syscalls.CLONE_NEWNS)
        self._control.close()
        # A descriptor that stays open here would keep a dropped snapshot alive.
        own = (self._own_pid_namespace, self._own_mount_namespace, self._own_network_namespace)
        for fd in (*own, *self._snapshots.values()):
            os.close(fd)

    def _remount(self, request: Dict[str, Any], fds: List[int]) -> None:
        """Remount a resting sandbox's testbed above its frozen upper, and keep its mount namespace as a snapshot."""
        with socket.socket(fileno=os.dup(fds[0])) as connection, wire.reporting(connection):
            namespace = f"/proc/{self._sandboxes[request['id']]}/ns/mnt"
            self._snapshots[request["snapshot"]] = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            self._mount_in(self._snapshots[request["snapshot"]], Lineage.parse(request["lineage"]))
            wire.send(connection, {})

    def _mount_in(self, namespace: int, line: Lineage) -> None:
        """Enter the mount namespace of a sandbox, mount its testbed, and return.

        This process does it itself, because a fork takes longer than the rest of a snapshot. Nothing of the sandbox is
        executed or opened meanwhile.
        """
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        try:
            isolation.remount_testbed(line)
        finally:
            try:
                syscalls.setns(self._own_mount_namespace, syscalls.CLONE_NEWNS)
            except OSError:
                # Everything after this would use the mounts of a sandbox.
                os._exit(1)

    def _listen(self, request: Dict[str, Any], fds: List[int]) -> None:
        """Send back a socket that listens in the network of a sandbox; whoever holds it may be anywhere."""
        with socket.socket(fileno=os.dup(fds[0])) as connection, wire.reporting(connection):
            namespace = os.open(f"/proc/{self._sandboxes[request['id']]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                listener = self._bind_in(namespace, request["port"])
            finally:
                os.close(namespace)
            with listener:
                descriptors = struct.pack("i", listener.fileno())
                connection.sendmsg([wire.pack({})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])

    def _bind_in(self, namespace: int, port: int) -> socket.socket:
        """Make the socket in a network namespace, and return to the own one."""
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        try:
            return _listening_socket(port)
        finally:
            try:
                syscalls.setns(self._own_network_namespace, syscalls.CLONE_NEWNET)
            except OSError:
                os._exit(1)

    def _drop(self, request: Dict[str, Any], _: List[int]) -> None:
        """Forget closed sandboxes and unneeded snapshots."""
        for sandbox in request.get("sandboxes", ()):
            self._sandboxes.pop(sandbox, None)
        for snapshot in request.get("snapshots", ()):
            fd = self._snapshots.pop(snapshot, None)
            if fd is not None:
                os.close(fd)


def _listening_socket(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def main(control_fd: int) -> None:
    """Serve the control socket ``control_fd`` until it closes."""
    control = socket.socket(fileno=control_fd)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    has_pytest = start.warm_up()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    wire.send(control, {"has_pytest": has_pytest})
    Zygote(control).serve()
