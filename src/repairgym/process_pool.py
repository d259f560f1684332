"""A bounded pool of worker processes that take requests over pipes.

Starts new interpreters of this program. Guarantees: a worker ignores Ctrl-C (the parent decides), ends when its pipe
closes and never outlives its parent; each request of `ProcessPool.map` gets exactly one answer, also when its worker
crashes or takes too long; a dead worker is replaced.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from repairgym.errors import RepairGymError
from repairgym.sandbox.guest.syscalls import set_parent_death_signal

_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class WorkerFailure:
    """The message of a worker that cannot continue."""

    error: RepairGymError | None
    """A deliberate error; None for a bug."""
    message: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Describe ``error``: a deliberate one as it is, a bug with its traceback."""
        if isinstance(error, RepairGymError):
            return cls(error, str(error))
        return cls(None, f"a worker process broke: {''.join(traceback.format_exception(error))}")

    def as_error(self) -> RepairGymError:
        """Return the error for the parent to raise."""
        return self.error or RepairGymError(self.message)


@dataclass(frozen=True)
class WorkerEnded:
    """Received in place of a message when the process of a worker has ended."""

    exit_code: int | None


@dataclass(frozen=True)
class WorkerTimeout:
    """Received in place of an answer that took too long; its worker was killed."""


@dataclass(frozen=True, eq=False)
class Worker:
    """One process and this end of its pipe."""

    process: SpawnProcess
    connection: Connection


class ProcessPool:
    """At most ``size`` processes of ``main(connection, setup)``, started when needed. Use as a context manager."""

    def __init__(self, main: Callable[[Connection, Any], None], setup: object, size: int) -> None:
        self._main = main
        self._setup = setup
        self._size = size
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that have been started and not been seen to end."""
        return tuple(self._workers)

    def start(self) -> None:
        """Start workers until there are ``size``; returns before they are ready."""
        while len(self._workers) < self._size:
            self._start_worker()

    def send(self, worker: Worker, request: object) -> None:
        """Send ``request``; `receive` reports a worker that has ended."""
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send(request)

    def receive(self, workers: Collection[Worker], timeout_s: float | None) -> Iterator[tuple[Worker, Any]]:
        """Wait for a message and yield one of each of ``workers`` that has sent some; `WorkerEnded` for a dead one."""
        by_connection = {worker.connection: worker for worker in workers}
        for connection in wait(list(by_connection), timeout_s):
            worker = by_connection[connection]  # type: ignore[index] # `wait` returns what it was given
            try:
                yield worker, worker.connection.recv()
            except (EOFError, OSError):  # OSError also where a worker was killed within a message
                self.kill(worker)
                yield worker, WorkerEnded(worker.process.exitcode)

    def map(
        self,
        requests: Sequence[object],
        timeout_s: float | None = None,
        sent: Callable[[int], None] = lambda index: None,
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield (index of the request, answer) as the answers arrive; a worker has one request at a time.

        ``sent`` is called with the index of a request that a worker has got.
        The answer is `WorkerEnded` or `WorkerTimeout` where there is none. Closing the iterator kills busy workers.
        """
        waiting = list(range(len(requests)))[::-1]
        busy: dict[Worker, tuple[int, float]] = {}
        try:
            while waiting or busy:
                while waiting and (worker := self._idle_worker(busy)) is not None:
                    busy[worker] = waiting.pop(), time.monotonic() + (timeout_s or float("inf"))
                    self.send(worker, requests[busy[worker][0]])
                    sent(busy[worker][0])
                left_s = min(deadline_s for _, deadline_s in busy.values()) - time.monotonic()
                for worker, answer in self.receive(busy, max(0.0, left_s) if timeout_s else None):
                    index, _ = busy.pop(worker)
                    if isinstance(answer, WorkerFailure):
                        self.kill(worker)  # it is about to end, and must not get another request
                    yield index, answer
                for worker in [worker for worker, (_, deadline_s) in busy.items() if time.monotonic() >= deadline_s]:
                    self.kill(worker)
                    yield busy.pop(worker)[0], WorkerTimeout()
        finally:
            for worker in busy:
                self.kill(worker)

    def _idle_worker(self, busy: Collection[Worker]) -> Worker | None:
        for worker in [worker for worker in self._workers if worker not in busy]:
            if worker.process.is_alive():
                return worker
            self.kill(worker)
        return self._start_worker() if len(self._workers) < self._size else None

    def _start_worker(self) -> Worker:
        # A spawned process holds nothing of this one, so its sandboxes start from a small parent.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        assert isinstance(here, Connection)
        process = context.Process(target=self._main, args=(there, self._setup), daemon=True)
        process.start()
        there.close()
        self._workers.append(Worker(process, here))
        return self._workers[-1]

    def kill(self, worker: Worker) -> None:
        """End a worker now; the next request starts another one."""
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.kill()
        worker.process.join()

    def close(self) -> None:
        """Close the pipes, which ends idle workers; kill those that still run after five seconds."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(_CLOSE_TIMEOUT_S)
            worker.process.kill()
            worker.process.join()
        self._workers.clear()


def end_with_parent() -> None:
    """Kill this process when its :mod:`multiprocessing` parent ends, or now if the parent has ended already."""
    set_parent_death_signal(signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


def run_worker(connection: Connection, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``serve`` as the main function of a worker; an error is sent to the parent as a `WorkerFailure`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        asyncio.run(serve())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        with suppress(OSError):
            connection.send(WorkerFailure.of(error))


async def answer_requests(connection: Connection, answer: Callable[[Any], Awaitable[object]]) -> None:
    """Answer one request after the other until the pipe closes."""
    inbox = open_inbox(connection)
    while (request := await inbox.get()) is not None:
        connection.send(await answer(request))


def open_inbox(connection: Connection) -> asyncio.Queue[Any]:
    """Return a queue of the requests as they arrive, None when the pipe closes.

    A thread always reads, whatever the event loop does: if both ends of the pipe waited with full buffers for the
    other to read, both would block forever.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Any] = asyncio.Queue()

    def put(request: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and this process with it
            loop.call_soon_threadsafe(inbox.put_nowait, request)

    def read() -> None:
        try:
            while True:
                put(connection.recv())
        except (EOFError, OSError):
            put(None)

    threading.Thread(target=read, name="inbox", daemon=True).start()
    return inbox
