"""The parts that all servers of tasks share: sandboxes and grader, tools with their schemas, a session per client.

Guarantees: no client leads more than one episode at a time, all together no more than ``max_episodes``; an episode
whose client is silent for ``idle_timeout_s`` is stopped; each graded episode is stored before its client hears of it;
what clients read holds nothing of the repair and of hidden tests but the verdict.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from repairgym.agent.formats import describe_schemas
from repairgym.config.commands import ServeTasksConfig
from repairgym.errors import InputError
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.external.clients import ClientEpisode, Observed, for_clients
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore

PHASE = "clients"


@dataclass
class TaskServer:
    """One process's tasks, sandboxes and grader for the clients of one protocol."""

    tasks: Sequence[Task]
    config: ServeTasksConfig
    runner: Runner
    renderer: ChatRenderer
    client: str
    """Name of the policy in the record: that of the protocol."""
    store: RunStore | None = None
    num_running: int = 0
    _num_begun: Counter[str] = field(default_factory=Counter)
    _next: int = 0

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the pipeline: ``name``, ``description`` and ``parameters``, a JSON schema."""
        return [schema["function"] for schema in describe_schemas(self.runner.pipeline.tools)]

    def find(self, task_id: str = "") -> Task:
        """Return a task by its id, or the one whose turn it is; `InputError` if none has this id."""
        if not task_id:
            return self.tasks[self._next % len(self.tasks)]
        task = next((task for task in self.tasks if task.id == task_id), None)
        if task is None:
            raise InputError(f"{task_id!r} is none of the {len(self.tasks)} tasks that are served here")
        return task

    def take(self, task_id: str = "") -> Task:
        """Return a task as `find` does, for an episode: it is another one's turn then."""
        task = self.find(task_id)
        self._next += not task_id
        return task

    def check_start(self, task_id: str, num_given_up: int) -> None:
        """Raise `InputError` unless an episode can begin once its client has given up ``num_given_up`` others."""
        limit = self.config.max_episodes
        if self.num_running - num_given_up >= limit:
            raise InputError(f"{limit} episodes are running (max_episodes); try again when one has ended")
        self.find(task_id)

    def episode(self, task: Task, seed: int | None = None) -> ClientEpisode:
        """Make an episode with an id of its own."""
        if task.id not in self._num_begun:
            known = self.store.rows(phase=PHASE, task_ids=[task.id]) if self.store else []
            self._num_begun[task.id] = max((int(row.id.rpartition("#")[2]) + 1 for row in known), default=0)
        start = self._num_begun[task.id]
        self._num_begun[task.id] += 1
        (job,) = make_group(PHASE, 0, task.id, 1, self.config.seed if seed is None else seed, start)
        return ClientEpisode(self.runner, self.renderer, task, job, self.client)

    def keep(self, task: Task, trajectory: Trajectory) -> None:
        """Store a graded episode, where there is a run folder."""
        if self.store:
            self.store.add_trajectory(trajectory, phase=PHASE, step=0, split=task.split)


@asynccontextmanager
async def open_server(
    tasks: Sequence[Task],
    config: ServeTasksConfig,
    renderer: ChatRenderer,
    client: str,
    store: RunStore | None = None,
) -> AsyncIterator[TaskServer]:
    """Open what a server of ``tasks`` needs, with the sandboxes of this machine."""
    rollout = for_clients(config.rollout)
    layers = LayerStore(config=rollout.layers)
    backend = create_backend(rollout.sandbox)
    runner = Runner(rollout, backend, lambda task: task_layers(task, layers), renderer, layers)
    try:
        yield TaskServer(tasks, config, runner, renderer, client, store)
    finally:
        await runner.close()
        await backend.close()


class Session:
    """One client: at most one episode at a time."""

    def __init__(self, server: TaskServer) -> None:
        self._server = server
        self._episode: ClientEpisode | None = None
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._why = "begin an episode first"
        self._expiring: asyncio.Future[None] | None = None
        self.is_over = False
        """True once an episode has ended and no other has begun."""

    @property
    def episode(self) -> ClientEpisode | None:
        """The running episode."""
        return self._episode

    async def begin(self, task_id: str = "", seed: int | None = None) -> tuple[Task, Observed]:
        """Stop the running episode, if any, and begin one.

        `InputError`, and the running one continues: there is no such task, or too many episodes run.
        """
        async with self._lock:
            self._server.check_start(task_id, self._episode is not None)
            task = self._server.take(task_id)
            self._server.num_running += 1  # before the other one ends, so that nobody else takes its place
            try:
                await self._stop("begin an episode first")
            except BaseException:
                self._server.num_running -= 1
                raise
            self.is_over = False
            self._episode = self._server.episode(task, seed)
            return task, await self._answered(self._episode, self._episode.open())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observed:
        """Call a tool of the running episode; `InputError` where none runs."""
        async with self._lock:
            if self._episode is None:
                raise InputError(f"no episode is running: {self._why}")
            self._stop_timer()
            return await self._answered(self._episode, self._episode.call(tool, arguments))

    async def close(self) -> None:
        """Stop the running episode."""
        async with self._lock:
            await self._stop("the session is closed")

    async def _answered(self, episode: ClientEpisode, answer: Awaitable[Observed]) -> Observed:
        try:
            observed = await answer
        except BaseException:
            await self._stop("it failed; begin another one")
            raise
        if observed.trajectory is not None:
            self._server.keep(episode.task, observed.trajectory)
            await self._stop("it has ended; begin another one")
        else:
            self._timer = asyncio.get_running_loop().call_later(self._server.config.idle_timeout_s, self._expire)
        return observed

    def _expire(self) -> None:
        self._expiring = asyncio.ensure_future(self._stop_idle())

    async def _stop_idle(self) -> None:
        async with self._lock:
            if self._timer is not None and self._timer.when() <= asyncio.get_running_loop().time():
                await self._stop(f"it was stopped after {self._server.config.idle_timeout_s:g} s without a call")

    async def _stop(self, why: str) -> None:
        self._stop_timer()
        self._why = why
        if self._episode is not None:
            episode, self._episode, self.is_over = self._episode, None, True
            self._server.num_running -= 1
            await episode.__aexit__()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def describe_verdict(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a client learns of a graded episode: no name of a hidden test and no line of the repair."""
    verdict = trajectory.verdict
    return {
        "verdict": verdict.kind.value,
        "reward": verdict.reward if verdict.is_valid else None,
        "stop_reason": trajectory.stop_reason.value,
        "num_turns": len(trajectory.turns),
    }
