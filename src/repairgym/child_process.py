"""Child processes of this program: how they start, and that they end with it, however it ends.

Reads who started this process; makes no files. Invariant: whether the parent dies before or after `end_with_parent`,
this process does not outlive it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from repairgym.sandbox.guest.syscalls import set_parent_death_signal


def end_with_parent() -> None:
    """Kill this process when the one that started it through :mod:`multiprocessing` ends, or now if it has ended.

    A worker of a pool waits for work at a pipe that its siblings hold open, so nothing else would tell it.
    """
    set_parent_death_signal(signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


def start_worker(main: Callable[[Connection, Any], None], setup: object) -> tuple[SpawnProcess, Connection]:
    """A new interpreter that runs ``main`` with one end of a pipe and ``setup``; returns it with the other end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    assert isinstance(here, Connection)
    process = context.Process(target=main, args=(there, setup), daemon=True)
    process.start()
    there.close()
    return process, here


def end_workers(workers: Iterable[tuple[SpawnProcess, Connection]]) -> None:
    """Close the pipes, at which workers end by themselves; who has not after five seconds is killed."""
    workers = list(workers)
    for _, connection in workers:
        connection.close()
    for process, _ in workers:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
