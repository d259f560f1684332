"""One rollout process: an engine, a sandbox back end and a grader, served over a pipe.

Reads `WorkRequest` messages; sends trajectories as they end, then a `WorkReport`. Invariants: it imports no learner, it
computes with one thread, it ignores Ctrl-C (the parent decides) and it ends when its pipe closes or its parent dies.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from mendwright.agent.scripted import find_script
from mendwright.child_process import end_with_parent
from mendwright.config.rollout import RolloutConfig
from mendwright.errors import MendError
from mendwright.models.loading import load_tokenizer
from mendwright.models.renderer import ChatRenderer
from mendwright.records import Task
from mendwright.rollout.jobs import EpisodeJob, PolicyRef
from mendwright.rollout.policies import PolicyCache
from mendwright.rollout.runner import Runner
from mendwright.sandbox.probe import create_backend
from mendwright.tasks.layers import LayerStore
from mendwright.tasks.validation import task_layers


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

    error: MendError | None
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
    except MendError as error:
        connection.send(WorkFailure(error, str(error)))


async def _serve(connection: Connection, setup: WorkerSetup) -> None:
    renderer = ChatRenderer(load_tokenizer(Path(setup.tokenizer_folder)))
    backend = create_backend(setup.config.sandbox)
    store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
    runner = Runner(setup.config, backend, lambda task: task_layers(task, store), renderer)
    policies = PolicyCache(setup.config, renderer)
    running: set[asyncio.Task[None]] = set()
    inbox = open_inbox(connection)
    try:
        while True:
            request = await inbox.get()
            if request is None:
                return
            task = asyncio.create_task(_answer(connection, request, runner, policies))
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await backend.close()
        await policies.close()


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


async def _answer(connection: Connection, request: WorkRequest, runner: Runner, policies: PolicyCache) -> None:
    """Run one request; what goes wrong is sent, because nothing else would say it."""
    try:
        policy = await policies.get(request.policy)
        async for trajectory in runner.run(request.jobs, request.tasks, policy, request.policy.temperature):
            connection.send(trajectory)
        connection.send(_report(len(request.jobs), runner, policies))
    except MendError as error:
        connection.send(WorkFailure(error, str(error)))
    except Exception:
        connection.send(WorkFailure(None, f"a rollout worker broke: {traceback.format_exc()}"))


def _report(num_jobs: int, runner: Runner, policies: PolicyCache) -> WorkReport:
    cache = {"cache/hits": float(runner.cache.num_hits), "cache/misses": float(runner.cache.num_misses)}
    return WorkReport(
        num_jobs=num_jobs,
        counters={**policies.counters(), **cache},
    )


def is_scripted(name: str) -> bool:
    """True when ``name`` is a policy without a model."""
    return find_script(name) is not None
