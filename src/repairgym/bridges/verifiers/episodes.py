"""Episodes of verifiers' rollouts: shared sandboxes, grader and tasks, and the rollout's model as a policy.

Imports no verifiers. Guarantees: one `SharedRunner` per event loop and configuration, made on first use (verifiers
makes a new harness for each episode); `close_runners` ends the sandboxes of the running loop. Every model call uses the
rollout's endpoint, so verifiers records it, with the sampling of its run; a temporary failure is retried here, as
verifiers leaves that to a harness, under one idempotency key, so no turn is recorded twice; a trainer learns from
verifiers' own tokens, not from those of our record.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from repairgym.bridges.verifiers.boxes import Box
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError, ModelServerError, PromptTooLongError, ServerRejectedError
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.openai import OpenAIPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.replies import Reply, read_chat_reply
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
        self._layers = layers = LayerStore(config=config.layers)
        self.renderer = ChatRenderer(load_tokenizer(tokenizer), is_thinking=config.pipeline.is_thinking)
        self._config = config
        self._backend = create_backend(config.sandbox)
        self._runner = Runner(config, self._backend, lambda task: task_layers(task, layers), self.renderer, layers)

    async def run(self, task: Task, policy: Policy, name: str) -> Trajectory:
        """Run and grade one episode; its unique ``name`` determines its seed."""
        job = EpisodeJob(name, task.id, task.id, crc32(name.encode()))
        return await self._runner.run_job(job, task, policy, self._config.temperature)

    def open_box(self, task: Task) -> Box:
        """Return a sandbox for one episode of an agent that verifiers runs."""
        return Box(self._runner, self._layers, task, self._config.pipeline.time_limit_s)

    async def close(self) -> None:
        """End the sandboxes."""
        await self._backend.close()


_RUNNERS: dict[tuple[asyncio.AbstractEventLoop, str, Path], SharedRunner] = {}


def open_runner(config: RolloutConfig, tokenizer: Path) -> SharedRunner:
    """Return the runner of the running loop for ``config``; raises as `load_tokenizer` and `create_backend`."""
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
    """Return a task of a folder, which is read once; `InputError` where the folder does not hold it."""
    tasks = _load(folder)
    if task_id not in tasks:
        raise InputError(f"{folder} holds no task {task_id!r}; see: repairgym tasks show")
    return tasks[task_id]


@cache
def _load(folder: Path) -> dict[str, Task]:
    return {task.id: task for task in TaskStore(folder).load()}


class InterceptedPolicy(OpenAIPolicy):
    """The policy of one rollout, behind the rollout's endpoint."""

    def __init__(self, client: EndpointClient, renderer: ChatRenderer, is_stopped: Callable[[], bool]) -> None:
        """``is_stopped`` tells whether a limit or stop condition of verifiers has ended the rollout."""
        super().__init__(client, renderer)
        self._is_stopped = is_stopped

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the model's next message.

        Raises:
            PromptTooLongError: verifiers has ended the rollout, or no room is left: the current state is graded.
            ModelServerError: no usable reply.
        """
        try:
            return await super().generate(session_id, prompt_ids, sampling)
        except ServerRejectedError as error:
            if self._is_stopped():
                raise PromptTooLongError("verifiers has ended the rollout") from error
            # Ends this rollout and not the run: verifiers has the provider's error and decides.
            raise ModelServerError(str(error)) from error

    def _read(self, body: Mapping[str, Any], sampling: SamplingParams) -> Reply:
        """Read a reply without its token counts: verifiers counts and bounds tokens itself."""
        return read_chat_reply({**body, "usage": None}, 0)
