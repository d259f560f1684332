"""One rollout process: an engine, a sandbox back end and a grader, served over a pipe.

Reads `WorkRequest` messages; sends trajectories as they end, then a `WorkReport`. Invariants: it imports no learner, it
computes with one thread, it ignores Ctrl-C (the parent decides) and it ends when its pipe closes or its parent dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from mendwright.agent.scripted import SCRIPTS, ScriptedPolicy
from mendwright.config.rollout import RolloutConfig
from mendwright.errors import MendError
from mendwright.models.base import Policy
from mendwright.models.renderer import ChatMLRenderer
from mendwright.records import Task
from mendwright.rollout.jobs import EpisodeJob, PolicyRef
from mendwright.rollout.runner import Runner
from mendwright.sandbox.probe import create_backend
from mendwright.tasks.layers import LayerStore

_PR_SET_PDEATHSIG = 1


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

    cpu_s: float
    """CPU seconds of the worker and its ended children so far."""
    peak_rss_bytes: int
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkFailure:
    """The worker cannot go on."""

    error: MendError | None
    message: str


def worker_main(connection: Connection, setup: WorkerSetup) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch

    torch.set_num_threads(1)
    try:
        asyncio.run(_serve(connection, setup))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except MendError as error:
        connection.send(WorkFailure(error, str(error)))


async def _serve(connection: Connection, setup: WorkerSetup) -> None:
    from mendwright.models.loading import load_tokenizer

    loop = asyncio.get_running_loop()
    renderer = ChatMLRenderer(load_tokenizer(Path(setup.tokenizer_folder)))
    backend = create_backend(setup.config.sandbox)
    store = LayerStore(Path(setup.cache_root) if setup.cache_root else None)
    runner = Runner(setup.config, backend, store, renderer)
    policies = _Policies(setup.config, renderer)
    try:
        while True:
            request: WorkRequest | None = await loop.run_in_executor(None, connection.recv)
            if request is None:
                return
            policy = await policies.get(request.policy)
            async for trajectory in runner.run(request.jobs, request.tasks, policy, request.policy.temperature):
                connection.send(trajectory)
            connection.send(_report(runner, policies))
    finally:
        await backend.close()
        await policies.close()


class _Policies:
    """The policy of the last request; weights are loaded when folder or version change."""

    def __init__(self, config: RolloutConfig, renderer: ChatMLRenderer) -> None:
        self._config = config
        self._renderer = renderer
        self._embedded = None
        self._loaded: tuple[str, int] | None = None

    async def get(self, ref: PolicyRef) -> Policy:
        if not ref.folder:
            return ScriptedPolicy(ref.name, self._renderer)
        from safetensors.torch import load_file

        from mendwright.models.embedded import EmbeddedPolicy

        if self._embedded is None:
            self._embedded = EmbeddedPolicy.from_folder(Path(ref.folder), self._config.engine)
            self._loaded = None
        if self._loaded != (ref.folder, ref.version):
            state = load_file(Path(ref.folder) / "model.safetensors")
            await self._embedded.load_state(state, ref.version)
            self._loaded = (ref.folder, ref.version)
        self._embedded.id = ref.name
        return self._embedded

    def counters(self) -> dict[str, float]:
        if self._embedded is None:
            return {}
        return {f"engine/{name}": float(value) for name, value in vars(self._embedded.statistics).items()}

    async def close(self) -> None:
        if self._embedded is not None:
            await self._embedded.close()


def _report(runner: Runner, policies: _Policies) -> WorkReport:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cache = {"cache/hits": float(runner.cache.num_hits), "cache/misses": float(runner.cache.num_misses)}
    return WorkReport(
        cpu_s=own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        peak_rss_bytes=own.ru_maxrss * 1024,
        counters={**policies.counters(), **cache, "time": time.time(), "pid": float(os.getpid())},
    )


def is_scripted(name: str) -> bool:
    """True when ``name`` is a policy without a model."""
    return name in SCRIPTS
