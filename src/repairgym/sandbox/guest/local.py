"""The trusted process of a degraded sandbox: the same server as in a namespace, on a copy of the tree.

Reads one ``start`` frame from the descriptor given as argument, makes ``testbed``, ``before``, ``tmp`` and ``guest`` in
the folder that the frame names. Untrusted code is restricted by Landlock where the kernel has it, by seccomp (no
socket, no System V memory) and by resource limits. Guarantees: however the host ends, all descendants of this process
are ended and the folder is removed (orphans cannot escape: this process is the subreaper).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from typing import Any, Callable, Dict, List

from . import confinement, files, reaping, rootfs, server, syscalls, wire
from .spawner import GUEST_ENVIRONMENT

_READABLE = (
    *(f"/etc/{name}" for name in ("passwd", "group", "hosts", "nsswitch.conf", "localtime")),
    "/proc",
)
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_PARTS = ("testbed", "tmp")
"""Folders in a snapshot."""


def _confinement(folder: str, header: Dict[str, Any], seccomp_program: bytes) -> Callable[[Dict[str, Any]], None]:
    """Return a function that turns a child into an untrusted process."""
    readable: List[str] = [*_READABLE, *header["readable"], os.path.realpath(f"{folder}/guest/repairgym_guest")]
    readable += [f"{folder}/guest", os.path.dirname(os.path.dirname(header["python"]))]
    writable = [*_DEVICES, f"{folder}/testbed", f"{folder}/tmp"]

    def confine(limits: Dict[str, Any]) -> None:
        # RLIMIT_NPROC counts every process of the host user, so it cannot bound one sandbox here.
        confinement.set_limits({**limits, "num_processes": None})
        syscalls.set_no_new_privileges()
        # Made for each process: no descriptor of the trusted process reaches its children.
        ruleset = confinement.build_ruleset(readable, writable, header["listable"])
        if ruleset is not None:
            syscalls.landlock_restrict(ruleset)
            os.close(ruleset)
        if seccomp_program:
            syscalls.set_seccomp_filter(seccomp_program)
        confinement.drop_privileges()

    return confine


def _prepare(header: Dict[str, Any], seccomp_program: bytes) -> server.Place:
    folder: str = header["folder"]
    snapshot: str = header.get("snapshot", "")
    for name in ("before",) if snapshot else ("testbed", "before"):
        shutil.copytree(header["tree"], f"{folder}/{name}", symlinks=True)
        # Deletions first: a folder may follow a file of its name.
        for path, text in sorted(header["files"].items(), key=lambda item: item[1] is not None):
            with files.placing(path):
                files.replace(f"{folder}/{name}", path, text)
    os.mkdir(f"{folder}/tmp")
    if snapshot:
        os.mkdir(f"{folder}/testbed")
        for name in _PARTS:
            files.copy_tree(f"{snapshot}/{name}", f"{folder}/{name}")

    def take(request: Dict[str, Any], _: List[bytes]) -> server.Answer:
        num_bytes = 0
        for name in _PARTS:
            os.mkdir(f"{request['folder']}/{name}")
            num_bytes += files.copy_tree(f"{folder}/{name}", f"{request['folder']}/{name}")
        return {"num_bytes": num_bytes}, ()

    binaries = os.path.dirname(header["python"])
    path = GUEST_ENVIRONMENT["PATH"].replace(os.path.dirname(rootfs.PYTHON), binaries)
    return server.Place(
        environment={**GUEST_ENVIRONMENT, "PATH": path, "HOME": f"{folder}/tmp", "TMPDIR": f"{folder}/tmp"},
        before=f"{folder}/before",
        testbed=f"{folder}/testbed",
        python=header["python"],
        guest=f"{folder}/guest",
        signal_all=reaping.signal_descendants,
        remove_ipc_objects=lambda: None,  # the namespace is the host's
        confine=_confinement(folder, header, seccomp_program),
        operations={"snapshot": take},
    )


def main() -> None:
    """Serve the socket whose number is the first argument until the host hangs up, then clean up."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    syscalls.set_child_subreaper()
    syscalls.set_dumpable(False)
    header, _ = wire.receive(connection)
    seccomp_program = confinement.build_filter(is_in_host_namespaces=True)
    try:
        with wire.reporting(connection):
            place = _prepare(header, seccomp_program)
            answer = {
                "has_pytest": importlib.util.find_spec("pytest") is not None,
                "landlock_version": syscalls.landlock_version(),
                "has_seccomp": bool(seccomp_program),
            }
            wire.send(connection, answer)
            server.Server(connection, place, header["limits"]).serve()
    finally:
        reaping.end_all(reaping.signal_descendants)
        try:
            shutil.rmtree(header["folder"], ignore_errors=True)
        except RecursionError:  # untrusted code decides the depth
            os.execvp("rm", ["rm", "-rf", "--", header["folder"]])
