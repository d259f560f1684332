"""Ending and removing control groups, also when the process that made them is gone.

Reads folders of the cgroup file system, removes them. Invariant: nothing outside of the given folder is touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import List

_WAIT_S = 2.0
_POLL_S = 0.005


def list_processes(folder: str) -> List[int]:
    """Processes in ``folder`` itself, as this process sees them."""
    try:
        with open(f"{folder}/cgroup.procs") as file:
            return [int(word) for word in file.read().split() if word != "0"]
    except OSError:
        return []


def kill(folder: str) -> None:
    """End every process in ``folder``."""
    with contextlib.suppress(OSError):
        with open(f"{folder}/cgroup.kill", "w") as file:
            file.write("1")
        return
    for pid in list_processes(folder):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def remove(folder: str, wait_s: float = _WAIT_S) -> bool:
    """End what is in ``folder`` and in the groups below it and remove them; False when something would not end."""
    try:
        children = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        children = []
    for child in children:
        remove(child, wait_s)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            os.rmdir(folder)
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
        kill(folder)
        time.sleep(_POLL_S)
