"""Where rollout workers run: what a pool needs of them, and those that are processes of this machine.

Reads `WorkRequest` messages; makes what workers send back. Invariants: every job given comes back as one trajectory or
within one `JobsLost`; a request ends with its reports; nothing here chooses who runs what (`pool`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol, cast

from repairgym.child_process import end_workers, start_worker
from repairgym.errors import SandboxError
from repairgym.records import Trajectory
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.worker import WorkerSetup, WorkFailure, WorkReport, WorkRequest, worker_main


@dataclass(frozen=True)
class JobsLost:
    """A worker is gone, with the jobs that it had not done; another one may do them."""

    jobs: tuple[EpisodeJob, ...]
    reason: str
    """Who was lost, and how that was noticed."""


Message = Trajectory | WorkReport | WorkFailure | JobsLost


class Workers(Protocol):
    """Workers of one kind. A worker is any hashable thing that names it."""

    def start(self) -> None:
        """Start those that do not run yet; returns before they are ready."""
        ...

    def ready(self) -> Sequence[Hashable]:
        """Those that can be given requests now."""
        ...

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Hand ``request`` to ``worker``."""
        ...

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
        """What the ``busy`` workers have sent, waiting up to ``timeout_s`` for the first message.

        Raises:
            RepairGymError: the run cannot go on.
        """
        ...

    def close(self) -> None:
        """End all workers; safe to call twice."""
        ...


class ProcessWorkers:
    """Child processes of this one. Losing one stops the run: it says something about the only machine there is."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._processes: dict[Connection, SpawnProcess] = {}

    def start(self) -> None:
        """Start those that do not run yet."""
        while len(self._processes) < self._setup.config.num_workers:
            process, connection = start_worker(worker_main, self._setup)
            self._processes[connection] = process

    def ready(self) -> Sequence[Connection]:
        """All of them: a pipe keeps what a process that still starts has not read."""
        return list(self._processes)

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Hand ``request`` to ``worker``."""
        cast(Connection, worker).send(request)

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Connection, Message]]:
        """One message of each busy worker that has sent something.

        Raises:
            SandboxError: a worker died.
        """
        for connection in wait(cast("list[Connection]", list(busy)), timeout_s):
            assert isinstance(connection, Connection)
            yield connection, self._message(connection)

    def _message(self, connection: Connection) -> Message:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError) as error:
            exit_code = self._processes[connection].exitcode
            raise SandboxError(f"a rollout worker ended (exit code {exit_code}); resume continues the run") from error
        assert isinstance(message, (Trajectory, WorkReport, WorkFailure))
        return message

    def close(self) -> None:
        """End all workers; safe to call twice."""
        end_workers((process, connection) for connection, process in self._processes.items())
        self._processes.clear()
