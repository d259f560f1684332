"""Sandboxes, grader and tasks that all rollouts of a process share.

Reads a `RolloutConfig` and folders of tasks; makes graded trajectories. Guarantees: one `SharedRunner` per event loop
and configuration, made on first use (verifiers makes a new harness for each episode); `close_runners` ends the
sandboxes of the running loop.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from zlib import crc32

from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.inference.base import Policy
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.runner import Runner
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore


class SharedRunner:
    """One process's sandboxes and grader."""

    def __init__(self, config: RolloutConfig, tokenizer: Path) -> None:
        """Open them.

        Raises:
            InputError: ``tokenizer`` is not a folder with a tokenizer.
            SandboxError: this machine has no sandbox of the configured kind.
        """
        layers = LayerStore(config=config.layers)
        self.renderer = ChatRenderer(load_tokenizer(tokenizer))
        self._config = config
        self._backend = create_backend(config.sandbox)
        self._runner = Runner(config, self._backend, lambda task: task_layers(task, layers), self.renderer)

    async def run(self, task: Task, policy: Policy, name: str) -> Trajectory:
        """Run and grade one episode; its unique ``name`` determines its seed."""
        job = EpisodeJob(name, task.id, task.id, crc32(name.encode()))
        return await self._runner.run_job(job, task, policy, self._config.temperature)

    async def close(self) -> None:
        """End the sandboxes."""
        await self._backend.close()


_RUNNERS: dict[tuple[asyncio.AbstractEventLoop, str, Path], SharedRunner] = {}


def open_runner(config: RolloutConfig, tokenizer: Path) -> SharedRunner:
    """Return the runner of the running loop for ``config``.

    Raises:
        InputError: ``tokenizer`` is not a folder with a tokenizer.
        SandboxError: this machine has no sandbox of the configured kind.
    """
    key = (asyncio.get_running_loop(), config.model_dump_json(), tokenizer)
    if key not in _RUNNERS:
        _RUNNERS[key] = SharedRunner(config, tokenizer)
    return _RUNNERS[key]


async def close_runners() -> None:
    """End the sandboxes of the running loop."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _RUNNERS if key[0] is loop]:
        await _RUNNERS.pop(key).close()


def find_task(folder: Path, task_id: str) -> Task:
    """Return a task of a folder, which is read once.

    Raises:
        InputError: the folder does not hold it.
    """
    tasks = _load(folder)
    if task_id not in tasks:
        raise InputError(f"{folder} holds no task {task_id!r}; see: repairgym tasks show")
    return tasks[task_id]


@cache
def _load(folder: Path) -> dict[str, Task]:
    return {task.id: task for task in TaskStore(folder).load()}
