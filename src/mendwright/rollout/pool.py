"""A pool of rollout workers: jobs in, graded trajectories out, groups kept together.

Reads jobs; makes trajectories in the order in which they end. Invariants: every job gives one trajectory or the run
stops with the reason; a group's members run in one worker (they share its prompt and its test runs), and groups begin
in the order of the jobs, so that they end about in it, too; after Ctrl-C nothing new begins; closing the pool, or the
death of this process, ends every worker and sandbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from mendwright.child_process import end_workers, start_worker
from mendwright.config.rollout import RolloutConfig
from mendwright.errors import MendError, SandboxError
from mendwright.records import Task, Trajectory
from mendwright.rollout.draining import Drain, draining_on_interrupt
from mendwright.rollout.failures import FailureStreak
from mendwright.rollout.jobs import EpisodeJob, PolicyRef
from mendwright.rollout.worker import WorkerSetup, WorkFailure, WorkReport, WorkRequest, worker_main

_DRAIN_POLL_S = 1.0


class WorkerPool:
    """Worker processes, started on first use. Use as a context manager."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._workers: dict[Connection, SpawnProcess] = {}
        self._failures = FailureStreak(setup.config.max_failures_in_row)
        self._drain = Drain()
        self.reports: dict[Connection, WorkReport] = {}

    @property
    def is_draining(self) -> bool:
        """True after Ctrl-C, while episodes in flight end."""
        return self._drain.is_asked

    @property
    def config(self) -> RolloutConfig:
        """How episodes run."""
        return self._setup.config

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task]) -> Iterator[Trajectory]:
        """Run all ``jobs``; yields trajectories as they end.

        Raises:
            SandboxError: too many invalid episodes in a row, or a worker died.
            MendError: what stopped a worker.
            KeyboardInterrupt: Ctrl-C, after the episodes in flight have been yielded or `drain_timeout_s` is over.
        """
        self._start()
        self._failures.forget()
        with draining_on_interrupt() as self._drain:
            yield from self._run(policy, self._portions(jobs), tasks)
            yield from self._failures.release()
            if self._drain.is_asked:
                raise KeyboardInterrupt

    def _run(
        self, policy: PolicyRef, waiting: list[tuple[EpisodeJob, ...]], tasks: Mapping[str, Task]
    ) -> Iterator[Trajectory]:
        load = dict.fromkeys(self._workers, 0)
        while not self._drain.is_over(self.config.drain_timeout_s):
            for connection in () if self._drain.is_asked else load:
                while waiting and load[connection] + len(waiting[-1]) <= max(self._room(waiting), len(waiting[-1])):
                    load[connection] += self._give(connection, waiting.pop(), policy, tasks)
            if not any(load.values()):
                return
            for connection in self._ready(load):
                message = self._receive(connection)
                if isinstance(message, WorkReport):
                    self.reports[connection] = message
                    load[connection] -= message.num_jobs
                    continue
                yield from self._failures.admit(message)

    def _room(self, waiting: Sequence[tuple[EpisodeJob, ...]]) -> int:
        """Jobs that one worker may hold: its bound, or its share of what is left, so that workers end together."""
        left = sum(map(len, waiting))
        return min(self.config.max_in_flight, -(-left // self.config.num_workers))

    def _portions(self, jobs: Sequence[EpisodeJob]) -> list[tuple[EpisodeJob, ...]]:
        """Whole groups, the first one last."""
        return [tuple(group) for _, group in groupby(jobs, key=lambda job: job.group_id)][::-1]

    def _give(
        self, connection: Connection, jobs: tuple[EpisodeJob, ...], policy: PolicyRef, tasks: Mapping[str, Task]
    ) -> int:
        connection.send(WorkRequest(policy, jobs, {job.task_id: tasks[job.task_id] for job in jobs}))
        return len(jobs)

    def _ready(self, load: Mapping[Connection, int]) -> list[Connection]:
        busy = [connection for connection, num_jobs in load.items() if num_jobs]
        return [ready for ready in wait(busy, _DRAIN_POLL_S) if isinstance(ready, Connection)]

    def _receive(self, connection: Connection) -> Trajectory | WorkReport:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError) as error:
            exit_code = self._workers[connection].exitcode
            raise SandboxError(f"a rollout worker ended (exit code {exit_code}); resume continues the run") from error
        if isinstance(message, WorkFailure):
            raise message.error or MendError(message.message)
        assert isinstance(message, (Trajectory, WorkReport))
        return message

    def _start(self) -> None:
        while len(self._workers) < self.config.num_workers:
            process, connection = start_worker(worker_main, self._setup)
            self._workers[connection] = process

    def counters(self) -> dict[str, float]:
        """Counters of all workers at their last report, added up."""
        found = Counter[str]()
        for report in self.reports.values():
            found.update(report.counters)
        return dict(found)

    def close(self) -> None:
        """End all workers; safe to call twice."""
        end_workers((process, connection) for connection, process in self._workers.items())
        self._workers.clear()
        self.reports.clear()
