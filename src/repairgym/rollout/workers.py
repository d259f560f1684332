"""Rollout workers: the work of one, the workers of this machine, and the protocol between workers and pool.

Reads `WorkRequest` messages. Makes trajectories as they end, then a `WorkReport`. Guarantees: every job comes back as
one trajectory or in one `JobsLost`; a request ends with its report; a worker imports no learner and computes with one
thread.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, cast

import torch

from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.process_pool import ProcessPool, Worker, WorkerEnded, WorkerFailure, open_inbox, run_worker
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, PolicyRef
from repairgym.rollout.policies import PolicyCache
from repairgym.rollout.runner import Runner
from repairgym.rollout.turn_log import TurnLog
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore


@dataclass(frozen=True)
class WorkerSetup:
    """Everything that a worker is made from; sent once."""

    config: RolloutConfig
    tokenizer_folder: str
    cache_root: str | None = None
    turns_folder: str = ""
    """Folder for the turns of episodes in flight; empty: they are not kept."""


@dataclass(frozen=True)
class WorkRequest:
    """A batch of jobs with their policy and tasks."""

    policy: PolicyRef
    jobs: tuple[EpisodeJob, ...]
    tasks: Mapping[str, Task]


@dataclass(frozen=True)
class WorkReport:
    """Sent after the last trajectory of a request."""

    num_jobs: int
    """Jobs of the request."""
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JobsLost:
    """The unfinished jobs of a lost worker; another worker may run them."""

    jobs: tuple[EpisodeJob, ...]
    reason: str
    """The lost worker, and how the loss was noticed."""


Message = Trajectory | WorkReport | WorkerFailure | JobsLost


class Workers(Protocol):
    """Workers of one kind. A worker is any hashable thing that names it."""

    def start(self) -> None:
        """Start missing workers; returns before they are ready."""

    def ready(self) -> Sequence[Hashable]:
        """Return the workers that can be given requests now."""

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Hand ``request`` to ``worker``."""

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
        """Return messages of ``busy`` workers, waiting up to ``timeout_s`` for the first; raises if the run is over."""

    def close(self) -> None:
        """End all workers; safe to call twice."""


@dataclass
class _Held:
    """Jobs that a worker has been given and has not reported."""

    unfinished: dict[str, EpisodeJob] = field(default_factory=dict)
    num_jobs: int = 0
    """Of requests without a report."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Of the last report."""


class ProcessWorkers:
    """Child processes of this one. A process that ends is replaced, and its unfinished jobs are lost."""

    def __init__(self, setup: WorkerSetup, main: Callable[[Connection, WorkerSetup], None] | None = None) -> None:
        """``main``: what a process runs; by default it has a `RolloutWorker`."""
        self._pool = ProcessPool(main or _rollout_worker, setup, setup.config.num_workers)
        self._held: defaultdict[Worker, _Held] = defaultdict(_Held)

    def start(self) -> None:
        """Start missing workers."""
        self._pool.start()

    def ready(self) -> Sequence[Worker]:
        """Return all workers: a pipe keeps the requests of a process that still starts."""
        return self._pool.workers

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Hand ``request`` to ``worker``."""
        held = self._held[cast(Worker, worker)]
        held.num_jobs += len(request.jobs)
        held.unfinished.update({job.trajectory_id: job for job in request.jobs})
        self._pool.send(cast(Worker, worker), request)

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Worker, Message]]:
        """Yield the messages of busy workers: one of each that has sent some, or what a dead one leaves."""
        for worker, message in self._pool.receive(cast("Collection[Worker]", busy), timeout_s):
            held = self._held[worker]
            if isinstance(message, WorkerEnded):
                yield from self._lose(worker, message)
                continue
            if isinstance(message, Trajectory):
                held.unfinished.pop(message.id, None)
            elif isinstance(message, WorkReport):
                held.num_jobs -= message.num_jobs
                held.counters = message.counters
            yield worker, message

    def _lose(self, worker: Worker, ended: WorkerEnded) -> Iterator[tuple[Worker, Message]]:
        """Report the finished jobs of a dead worker, return the others as lost, start another worker."""
        held = self._held.pop(worker)
        jobs = tuple(held.unfinished.values())
        yield worker, WorkReport(held.num_jobs - len(jobs), held.counters)
        yield worker, JobsLost(jobs, f"a rollout worker ended (exit code {ended.exit_code})")
        self._pool.start()

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._pool.close()
        self._held.clear()


class RequestWorker(Protocol):
    """The part of a worker that answers requests."""

    def run(self, request: WorkRequest) -> AsyncIterator[Trajectory]:
        """Yield graded trajectories as they end, one per job of ``request``."""

    def report(self, num_jobs: int) -> WorkReport:
        """Report that ``num_jobs`` are done, with the counters so far."""

    async def close(self) -> None:
        """End what it holds."""


class RolloutWorker:
    """One worker, wherever it runs: a sandbox back end, a grader, caches and the policy of its requests."""

    def __init__(
        self,
        config: RolloutConfig,
        tokenizer: Path,
        find_layers: Callable[[Task], TaskLayers],
        store: LayerStore,
        turn_log: TurnLog | None = None,
    ) -> None:
        """Make a worker; ``tokenizer`` is a model folder, ``find_layers`` locates a task's layers in ``store``."""
        renderer = ChatRenderer(load_tokenizer(tokenizer), is_thinking=config.pipeline.is_thinking)
        self._backend = create_backend(config.sandbox)
        self._runner = Runner(config, self._backend, find_layers, renderer, store, turn_log)
        self._policies = PolicyCache(config, renderer)

    async def run(self, request: WorkRequest) -> AsyncIterator[Trajectory]:
        """Yield graded trajectories as they end, one per job of ``request``."""
        policy = await self._policies.get(request.policy)
        async for trajectory in self._runner.run(request.jobs, request.tasks, policy, request.policy.temperature):
            yield trajectory

    def report(self, num_jobs: int) -> WorkReport:
        """Report that ``num_jobs`` are done, with the counters so far."""
        return WorkReport(num_jobs=num_jobs, counters={**self._policies.counters(), **self._runner.counters()})

    async def close(self) -> None:
        """End sandboxes and engine."""
        await self._backend.close()
        await self._runner.close()
        await self._policies.close()


def _rollout_worker(connection: Connection, setup: WorkerSetup) -> None:
    torch.set_num_threads(1)
    run_worker(connection, lambda: _serve(connection, setup))


async def _serve(connection: Connection, setup: WorkerSetup) -> None:
    store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
    turn_log = TurnLog(Path(setup.turns_folder)) if setup.turns_folder else None
    tokenizer = Path(setup.tokenizer_folder)
    worker = RolloutWorker(setup.config, tokenizer, lambda task: task_layers(task, store), store, turn_log)
    await serve_requests(connection, worker)


async def serve_requests(connection: Connection, worker: RequestWorker) -> None:
    """Run all requests at the same time, until the pipe closes; then close ``worker``."""
    running: set[asyncio.Task[None]] = set()
    inbox = open_inbox(connection)
    try:
        while (request := await inbox.get()) is not None:
            task = asyncio.create_task(_answer(connection, request, worker))
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await worker.close()


async def _answer(connection: Connection, request: WorkRequest, worker: RequestWorker) -> None:
    """Run one request; errors are sent to the pool."""
    try:
        async for trajectory in worker.run(request):
            connection.send(trajectory)
        connection.send(worker.report(len(request.jobs)))
    except Exception as error:
        connection.send(WorkerFailure.of(error))
