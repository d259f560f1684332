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
import signal
import socket
import sys
from typing import Any, Dict, List, Optional

from . import files, isolation, server, syscalls, wire
from .spawner import GUEST_ENVIRONMENT


class DescendantReaper:
    """Ends the descendants of this process, found in ``/proc``."""

    def signal_all(self, number: int) -> None:
        """See :class:`.process.Reaper`."""
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end_all(self) -> Dict[int, int]:
        """See :class:`.process.Reaper`."""
        statuses: Dict[int, int] = {}
        while True:
            self.signal_all(signal.SIGKILL)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return statuses
            statuses[pid] = status


def _parent(pid: str) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _descendants() -> List[int]:
    children: Dict[Optional[int], List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    found: List[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _confine(limits: Dict[str, Any]) -> None:
    # RLIMIT_NPROC counts every process of the host user, so it cannot bound one sandbox here.
    isolation.set_limits({**limits, "num_processes": None})
    isolation.drop_privileges()


def _prepare(header: Dict[str, Any]) -> server.Place:
    folder: str = header["folder"]
    for name in ("testbed", "before"):
        shutil.copytree(header["tree"], f"{folder}/{name}", symlinks=True)
        for path, text in header["files"].items():
            _put(f"{folder}/{name}", path, text)
    os.mkdir(f"{folder}/tmp")
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
        shutil.rmtree(header["folder"], ignore_errors=True)
