"""Episodes that clients lead over a connection: the tools of a pipeline on one task, a submission, a verdict.

Reads calls of tools; makes observations and a graded `Trajectory`. Guarantees: an episode is run, limited and graded as
those of any policy are (`rollout/runner.py`); a sandbox failure is not tried again, because nobody could repeat the
client's calls, and ends as an *invalid* verdict; a closed episode leaves no sandbox.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from repairgym.agent.clients import ClientPolicy
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, InputError
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.runner import Runner


def for_clients(config: RolloutConfig) -> RolloutConfig:
    """Return ``config`` with one attempt per episode; `ConfigError` for tools that clients could not be told of."""
    if config.pipeline.mcp:
        raise ConfigError("pipeline.mcp has no effect on clients, which have servers of their own; leave it out")
    return config.model_copy(update={"max_attempts": 1})


@dataclass(frozen=True)
class Observed:
    """An answer of the environment."""

    text: str
    error: str = ""
    """Kind of error, as a turn has it, or ``infrastructure``."""
    trajectory: Trajectory | None = None
    """The graded episode, once it has ended."""


class ClientEpisode:
    """One episode; use it in an ``async with`` block, which ends its sandbox."""

    def __init__(self, runner: Runner, renderer: ChatRenderer, task: Task, job: EpisodeJob, client: str) -> None:
        """Start nothing yet; ``client`` is the name of the policy in the record."""
        self.id = job.trajectory_id
        self.task = task
        self._policy = ClientPolicy(client, renderer, runner.pipeline.format)
        self._runner = runner
        self._job = job
        self._running: asyncio.Task[Trajectory] | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the episode; one that has not ended leaves no record."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._running

    async def open(self) -> Observed:
        """Start the episode; returns the first message of its pipeline."""
        self._running = asyncio.ensure_future(self._runner.run_job(self._job, self.task, self._policy, 1.0))
        return await self._answer()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observed:
        """Call a tool; returns its observation, and the graded trajectory where the episode ends with it.

        Raises:
            InputError: the episode has ended.
        """
        async with self._turn:
            if self._running is None or self._running.done():
                raise InputError(f"the episode of {self.task.id} has ended; begin another one")
            try:
                self._policy.send(tool, arguments)
            except InputError as error:  # the episode continues: another call may do
                return Observed(f"error: {error}", "format", None)
            return await self._answer()

    async def _answer(self) -> Observed:
        assert self._running is not None
        ready = asyncio.ensure_future(self._policy.until_ready())
        try:
            await asyncio.wait({ready, self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        trajectory = await self._running if self._running.done() else None
        if trajectory is not None and not trajectory.verdict.is_valid:
            return Observed(f"error: {trajectory.verdict.reason}", "infrastructure", trajectory)
        last = self._policy.last
        text, error = (last.observation, last.error) if last else (self._policy.opening, "")
        return Observed(text, error, trajectory)
