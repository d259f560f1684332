"""A pool without processes: episodes run in this one, for tests and for debugging with breakpoints.

Reads and makes what :class:`~repairgym.rollout.pool.WorkerPool` does. Invariant: same trajectories for same jobs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Self

from repairgym.config.rollout import RolloutConfig
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, Grow, PolicyRef, no_growth
from repairgym.rollout.policies import PolicyCache
from repairgym.rollout.pool import FailureStreak
from repairgym.rollout.runner import Runner
from repairgym.rollout.turn_log import TurnLog
from repairgym.sandbox.base import SandboxBackend
from repairgym.sizing.workers import size_workers, this_host
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.store import LayerStore


class LocalPool:
    """Runs jobs in the calling process; each call has its own event loop, engine and sandbox back end."""

    def __init__(
        self,
        config: RolloutConfig,
        make_backend: Callable[[], SandboxBackend],
        find_layers: Callable[[Task], TaskLayers],
        renderer: ChatRenderer,
        store: LayerStore | None = None,
        turn_log: TurnLog | None = None,
    ) -> None:
        """Make a pool; ``store`` and ``turn_log`` are those of the runner."""
        self._config = size_workers(config, [this_host()])
        self._store = store
        self._turn_log = turn_log
        self._make_backend = make_backend
        self._find_layers = find_layers
        self._renderer = renderer
        self._failures = FailureStreak(config.max_failures_in_row)
        self._counters = Counter[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between calls."""

    @property
    def config(self) -> RolloutConfig:
        """Settings of the episodes."""
        return self._config

    @property
    def is_draining(self) -> bool:
        """Never: Ctrl-C stops this process at once."""
        return False

    def counters(self) -> dict[str, float]:
        """Counters of all calls, added up."""
        return dict(self._counters)

    def run(
        self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow = no_growth
    ) -> Iterator[Trajectory]:
        """Yield trajectories as they end; episodes stand still while the caller works. Raises as `WorkerPool.run`."""
        self._failures.forget()
        with asyncio.Runner() as loop:
            trajectories = self._run(policy, jobs, tasks, grow)
            made: list[Trajectory] = []
            while loop.run(_take_next(trajectories, made)):
                yield from self._failures.admit(made.pop())
        yield from self._failures.release()

    async def _run(
        self, ref: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow
    ) -> AsyncIterator[Trajectory]:
        if not jobs:
            return
        backend = self._make_backend()
        policies = PolicyCache(self.config, self._renderer)
        runner = Runner(self.config, backend, self._find_layers, self._renderer, self._store, self._turn_log)
        try:
            policy = await policies.get(ref)
            while jobs:
                following: list[EpisodeJob] = []
                async for trajectory in runner.run(jobs, tasks, policy, ref.temperature):
                    following += grow(trajectory)
                    yield trajectory
                jobs = following
        finally:
            self._counters.update(policies.counters() | runner.counters())
            await policies.close()
            await runner.close()
            await backend.close()


async def _take_next(trajectories: AsyncIterator[Trajectory], made: list[Trajectory]) -> bool:
    """Append the next one to ``made``; as a result, `asyncio.Runner` would make its whole text at each end of a run."""
    async for trajectory in trajectories:
        made.append(trajectory)
        return True
    return False
