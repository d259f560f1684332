"""One rollout worker, and the process that serves one over a pipe.

Reads `WorkRequest` messages; sends trajectories as they end, then a `WorkReport`. Invariants: a worker imports no
learner; the process computes with one thread, ignores Ctrl-C (the parent decides) and ends when its pipe closes or its
parent dies.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from repairgym.agent.scripted import find_script
from repairgym.child_process import end_with_parent
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import RepairGymError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, PolicyRef
from repairgym.rollout.policies import PolicyCache
from repairgym.rollout.runner import Runner
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is made from; sent once."""

    config: RolloutConfig
    tokenizer_folder: str
    cache_root: str | None = None


@dataclass(frozen=True)
class WorkRequest:
    """A batch of jobs with the policy that runs them and the tasks they name."""

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
class WorkFailure:
    """The worker cannot go on."""

    error: RepairGymError | None
    message: str


def worker_main(connection: Connection, setup: WorkerSetup) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    try:
        asyncio.run(_serve(connection, setup))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except RepairGymError as error:
        connection.send(WorkFailure(error, str(error)))


class RolloutWorker:
    """What one worker holds, wherever it runs: a sandbox back end, a grader, caches and the policy of its requests."""

    def __init__(self, config: RolloutConfig, tokenizer: Path, find_layers: Callable[[Task], TaskLayers]) -> None:
        """``tokenizer``: its folder; ``find_layers``: where the layers of a task lie on this machine."""
        renderer = ChatRenderer(load_tokenizer(tokenizer))
        self._backend = create_backend(config.sandbox)
        self._runner = Runner(config, self._backend, find_layers, renderer)
        self._policies = PolicyCache(config, renderer)

    async def run(self, request: WorkRequest) -> AsyncIterator[Trajectory]:
        """Graded trajectories as they end, one per job of ``request``."""
        policy = await self._policies.get(request.policy)
        async for trajectory in self._runner.run(request.jobs, request.tasks, policy, request.policy.temperature):
            yield trajectory

    def report(self, num_jobs: int) -> WorkReport:
        """That ``num_jobs`` are done, with the counters so far."""
        cache = self._runner.cache
        hits = {"cache/hits": float(cache.num_hits), "cache/misses": float(cache.num_misses)}
        return WorkReport(num_jobs=num_jobs, counters={**self._policies.counters(), **hits})

    async def close(self) -> None:
        """End sandboxes and engine."""
        await self._backend.close()
        await self._policies.close()


async def _serve(connection: Connection, setup: WorkerSetup) -> None:
    store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
    worker = RolloutWorker(setup.config, Path(setup.tokenizer_folder), lambda task: task_layers(task, store))
    running: set[asyncio.Task[None]] = set()
    inbox = open_inbox(connection)
    try:
        while True:
            request = await inbox.get()
            if request is None:
                return
            task = asyncio.create_task(_answer(connection, request, worker))
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await worker.close()


def open_inbox(connection: Connection) -> asyncio.Queue[WorkRequest | None]:
    """Requests as they arrive, None when the pipe closes.

    A thread of its own always reads, whatever the event loop does: if both ends of the pipe waited with full buffers
    for the other to read, neither would go on.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[WorkRequest | None] = asyncio.Queue()

    def put(request: WorkRequest | None) -> None:
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


async def _answer(connection: Connection, request: WorkRequest, worker: RolloutWorker) -> None:
    """Run one request; what goes wrong is sent, because nothing else would say it."""
    try:
        async for trajectory in worker.run(request):
            connection.send(trajectory)
        connection.send(worker.report(len(request.jobs)))
    except Exception as error:
        connection.send(describe_failure(error))


def describe_failure(error: Exception) -> WorkFailure:
    """What a worker says of ``error``: a deliberate one goes on as it is, a bug with its traceback."""
    if isinstance(error, RepairGymError):
        return WorkFailure(error, str(error))
    return WorkFailure(None, f"a rollout worker broke: {''.join(traceback.format_exception(error))}")


def is_scripted(name: str) -> bool:
    """True when ``name`` is a policy without a model."""
    return find_script(name) is not None
