"""Grades many submissions in processes of their own.

Reads submissions; makes answers in the order in which they end. Invariants: every submission gets exactly one answer; a
process that dies or takes longer than `max_instance_s` costs the submission it worked on (invalid) and is replaced;
closing the pool, or the death of this process, ends every process and sandbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from repairgym.child_process import end_workers, start_worker
from repairgym.grading.predictions.worker import GradeAnswer, GradeRequest, WorkerSetup, invalid, worker_main


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    index: int = -1
    """Of the submission it works on; -1: none."""
    deadline_s: float = 0.0
    """On the monotonic clock."""


class GradingPool:
    """Grading processes, started when there is work for them. Use as a context manager."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Nothing starts yet."""
        self._setup = setup
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def processes(self) -> tuple[SpawnProcess, ...]:
        """The processes that live now."""
        return tuple(worker.process for worker in self._workers)

    def run(self, requests: Sequence[GradeRequest]) -> Iterator[tuple[int, GradeAnswer]]:
        """(index of the request, answer) of all ``requests``, as they end.

        Raises:
            RepairGymError: no process can work here, e.g. because nothing isolates.
        """
        waiting = list(range(len(requests)))[::-1]
        num_workers = min(self._num_workers, len(requests))
        while waiting or any(worker.index >= 0 for worker in self._workers):
            while waiting and (worker := self._idle(num_workers)) is not None:
                self._give(worker, waiting.pop(), requests)
            yield from self._collect()

    def start(self) -> None:
        """Start the processes now instead of with their first submission."""
        while len(self._workers) < self._num_workers:
            self._start()

    @property
    def _num_workers(self) -> int:
        return self._setup.config.num_workers or os.cpu_count() or 1

    def _idle(self, num_workers: int) -> _Worker | None:
        for worker in [worker for worker in self._workers if worker.index < 0]:
            if worker.process.is_alive():
                return worker
            self._end(worker)
        return self._start() if len(self._workers) < num_workers else None

    def _start(self) -> _Worker:
        self._workers.append(_Worker(*start_worker(worker_main, self._setup)))
        return self._workers[-1]

    def _give(self, worker: _Worker, index: int, requests: Sequence[GradeRequest]) -> None:
        worker.index = index
        worker.deadline_s = time.monotonic() + self._setup.config.max_instance_s
        try:
            worker.connection.send(requests[index])
        except (BrokenPipeError, ConnectionResetError):
            return  # it has ended; `_collect` reads what it said, or the end of its pipe

    def _collect(self) -> Iterator[tuple[int, GradeAnswer]]:
        """Wait for the next answer, death or deadline."""
        busy = [worker for worker in self._workers if worker.index >= 0]
        left_s = min(worker.deadline_s for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(0.0, left_s))
        for worker in busy:
            index = worker.index
            if worker.connection in ready:
                yield index, self._receive(worker)
            elif time.monotonic() >= worker.deadline_s:
                self._end(worker)
                yield index, invalid(f"the grading took longer than {self._setup.config.max_instance_s:g} s")

    def _receive(self, worker: _Worker) -> GradeAnswer:
        worker.index = -1
        try:
            answer = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._end(worker)
            return invalid(f"the grading process ended with exit code {worker.process.exitcode}")
        assert isinstance(answer, GradeAnswer)
        if answer.error is not None:
            raise answer.error
        return answer

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.kill()
        worker.process.join()

    def close(self) -> None:
        """End all processes; safe to call twice."""
        end_workers((worker.process, worker.connection) for worker in self._workers)
        self._workers.clear()
