"""The trusted process of a degraded sandbox: the same server as in a namespace, on a copy of the tree, without walls.

Reads one ``start`` frame from the descriptor given as argument, makes ``testbed``, ``before`` and ``tmp`` in the folder
that the frame names. Invariants: whatever way the host goes, the processes that came from here are ended and the folder
is removed (a process that gives itself another parent outside of the tree cannot escape: this one is the subreaper).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
from typing import Any, Dict, List, Optional

from . import copying, files, isolation, server, syscalls, wire
from .reaping import DescendantReaper
from .spawner import GUEST_ENVIRONMENT

_PARTS = ("testbed", "tmp")
"""What a snapshot holds."""


def _confine(limits: Dict[str, Any]) -> None:
    # RLIMIT_NPROC counts every process of the host user, so it cannot bound one sandbox here.
    isolation.set_limits({**limits, "num_processes": None})
    isolation.drop_privileges()


def _prepare(header: Dict[str, Any]) -> server.Place:
    folder: str = header["folder"]
    snapshot: str = header.get("snapshot", "")
    for name in ("before",) if snapshot else ("testbed", "before"):
        shutil.copytree(header["tree"], f"{folder}/{name}", symlinks=True)
        for path, text in header["files"].items():
            _put(f"{folder}/{name}", path, text)
    os.mkdir(f"{folder}/tmp")
    if snapshot:
        os.mkdir(f"{folder}/testbed")
        for name in _PARTS:
            copying.copy_tree(f"{snapshot}/{name}", f"{folder}/{name}")

    def take(request: Dict[str, Any], _: List[bytes]) -> server.Answer:
        num_bytes = 0
        for name in _PARTS:
            os.mkdir(f"{request['folder']}/{name}")
            num_bytes += copying.copy_tree(f"{folder}/{name}", f"{request['folder']}/{name}")
        return {"num_bytes": num_bytes}, ()

    binaries = os.path.dirname(header["python"])
    path = GUEST_ENVIRONMENT["PATH"].replace(os.path.dirname(isolation.PYTHON), binaries)
    return server.Place(
        testbed=f"{folder}/testbed",
        python=header["python"],
        guest=folder,
        environment={**GUEST_ENVIRONMENT, "PATH": path, "HOME": f"{folder}/tmp", "TMPDIR": f"{folder}/tmp"},
        before=f"{folder}/before",
        upper=None,
        reaper=DescendantReaper(),
        confine=_confine,
        run_warm=None,
        operations={"snapshot": take},
    )


def _put(root: str, path: str, text: Optional[str]) -> None:
    if text is not None:
        files.write(root, path, text.encode("utf-8", "surrogateescape"))
        return
    real = files.resolve(root, path)
    if os.path.isdir(real):
        shutil.rmtree(real)
    elif os.path.lexists(real):
        os.unlink(real)


def main() -> None:
    """Serve the socket whose number is the first argument until the host hangs up, then clear up."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    syscalls.set_child_subreaper()
    header, _ = wire.receive(connection)
    try:
        place = _prepare(header)
        wire.send(connection, {"has_pytest": importlib.util.find_spec("pytest") is not None})
        server.Server(connection, place, header["limits"]).serve()
    except Exception as error:
        with contextlib.suppress(OSError):
            wire.send(connection, wire.describe_error(error))
    finally:
        DescendantReaper().end_all()
        try:
            shutil.rmtree(header["folder"], ignore_errors=True)
        except RecursionError:  # untrusted code decides how deep it goes
            os.execvp("rm", ["rm", "-rf", "--", header["folder"]])
