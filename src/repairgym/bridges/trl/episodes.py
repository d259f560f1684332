"""A `rollout_func` for TRL's `GRPOTrainer`: our episodes in our sandboxes, graded by our grader; one row per prompt.

Guarantees: every row was sampled by the trainer's current weights; ids and log-probabilities are those of the ledger,
no text is encoded again; sandbox failures are retried in fresh sandboxes; an episode without a verdict then has no
learned token and the reward None (never 0), which TRL leaves out of the group's baseline; training stops with the
reason when no valid episode is left; a task of another split than ``train`` is never trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from repairgym.bridges.trl.checks import check_rollout, check_trainer, plain_model
from repairgym.bridges.trl.loop_thread import LoopThread
from repairgym.bridges.versions import require_extra
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import DataSetSelection, TaskSelection
from repairgym.errors import InputError, SandboxError, TaskError
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.inference.engine.core import Engine
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, make_group
from repairgym.rollout.pool import FailureStreak
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.store import TaskStore

if TYPE_CHECKING:
    from trl import GRPOTrainer
from dataclasses import dataclass

import numpy as np

from repairgym.learning.samples import policy_sample
from repairgym.records import VerdictKind

PHASE = "trl"
_INDEX_STRIDE = 1_000_000
"""Distance between the episode numbers of two processes, so that their seeds differ."""


class Episodes:
    """Runs the episodes of one training process; use it in a ``with`` block, which ends its sandboxes."""

    def __init__(
        self,
        tasks: Sequence[Task],
        tokenizer: PreTrainedTokenizerFast,
        config: RolloutConfig,
        backend: SandboxBackend,
        find_layers: Callable[[Task], TaskLayers],
        *,
        store: RunStore | None = None,
        layer_store: LayerStore | None = None,
    ) -> None:
        """Make the runner; `open_episodes` makes it from folders. Raises as `check_rollout`.

        Args:
            tasks: Named in the trainer's data set by their ids; see `dataset_rows`.
            tokenizer: The model's.
            config: Pipeline, limits, grading, engine. ``num_workers`` is ignored: this process is the only one.
            backend: Makes the sandboxes.
            find_layers: Finds the trees of a task.
            store: Receives every trajectory, with the trainer's step.
            layer_store: Where the replay judge finds its oracles; None: that judge judges nothing.
        """
        check_rollout(config)
        self._tasks = {task.id: task for task in tasks}
        self._tokenizer = tokenizer
        self._config = config
        self._backend = backend
        self._renderer = ChatRenderer(tokenizer, is_thinking=config.pipeline.is_thinking)
        self._runner = Runner(config, backend, find_layers, self._renderer, layer_store)
        self._failures = FailureStreak(config.max_failures_in_row)
        self._store = store
        self._policy: EmbeddedPolicy | None = None
        self._checked: GRPOTrainer | None = None
        self._step = -1
        self._num_sampled = Counter[str]()
        self._thread = LoopThread("episodes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the engine and all sandboxes."""
        try:
            self._thread.run(self._close())
        finally:
            self._thread.close()

    def dataset_rows(self, selection: TaskSelection | None = None) -> list[dict[str, str]]:
        """Make rows for `datasets.Dataset.from_list`: the prompt of a row is the id of a task.

        ``selection`` (None: the train split) names the tasks; `ConfigError` where none is left.
        """
        selected = select_tasks(self._tasks.values(), selection or DataSetSelection())
        return [{"prompt": task.id} for task in selected.tasks]

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Run one episode per prompt with the current weights of ``trainer``; `GRPOTrainer` calls this.

        Raises:
            ConfigError: a setting of the trainer that our episodes do not support, or an unsupported model.
            InputError: a prompt is not the id of a task.
            TaskError: a task is not for training.
            SandboxError: too many episodes, or all, are invalid.
        """
        self._check(trainer)
        self._begin(trainer)
        jobs = self._jobs(prompts, trainer)
        trajectories = self._thread.run(self._run(jobs, plain_model(trainer), trainer.state.global_step))
        self._record(trajectories)
        if not any(trajectory.verdict.is_valid for trajectory in trajectories):
            raise SandboxError(
                f"step {trainer.state.global_step}: all {len(jobs)} episodes are invalid; the last: "
                f"{trajectories[-1].verdict.reason}. Run `repairgym doctor`, fix the cause, then resume from the last "
                "checkpoint"
            )
        return make_output(trajectories, self._renderer.stop_token_ids[0])

    def _check(self, trainer: GRPOTrainer) -> None:
        if trainer is not self._checked:
            check_trainer(trainer, self._config.pipeline, self._tokenizer)
            self._checked = trainer

    def _begin(self, trainer: GRPOTrainer) -> None:
        """Forget stored steps that this run repeats: a checkpoint may be older than the last episodes."""
        if self._step >= 0 or self._store is None or trainer.accelerator.process_index != 0:
            return
        num_dropped = self._store.drop_steps(phase=PHASE, first_step=trainer.state.global_step)
        if num_dropped:
            text = f"{num_dropped} episodes from step {trainer.state.global_step} on are deleted: training repeats it"
            self._store.add_event("begun_again", text, phase=PHASE)

    def _jobs(self, prompts: Sequence[str], trainer: GRPOTrainer) -> list[EpisodeJob]:
        """Make one job per prompt; episodes of one task and step differ by their number."""
        if trainer.state.global_step != self._step:
            self._step = trainer.state.global_step
            self._num_sampled.clear()
        jobs = []
        for prompt in prompts:
            if prompt not in self._tasks:
                raise InputError(
                    f"the prompt {prompt!r} is not the id of a task; make the data set from dataset_rows()"
                )
            if trainer.model.training and self._tasks[prompt].split != "train":
                raise TaskError(f"{prompt} is a {self._tasks[prompt].split} task; only train tasks are trained on")
            start = trainer.accelerator.process_index * _INDEX_STRIDE + self._num_sampled[prompt]
            self._num_sampled[prompt] += 1
            jobs += make_group(PHASE, self._step, prompt, 1, trainer.args.seed, start)
        return jobs

    def _record(self, trajectories: Sequence[Trajectory]) -> None:
        """Store ``trajectories`` in the thread that opened the store."""
        if self._store is None:
            return
        for trajectory in trajectories:
            split = self._tasks[trajectory.task_id].split
            self._store.add_trajectory(trajectory, phase=PHASE, step=self._step, split=split)

    async def _run(self, jobs: Sequence[EpisodeJob], model: PreTrainedModel, version: int) -> list[Trajectory]:
        """Return the trajectories of ``jobs``, in their order."""
        policy = await self._load_weights(model, version)
        trajectories: dict[str, Trajectory] = {}
        self._failures.forget()
        async with aclosing(self._runner.run(jobs, self._tasks, policy)) as ended:
            async for trajectory in ended:
                trajectories |= {admitted.id: admitted for admitted in self._failures.admit(trajectory)}
        trajectories |= {admitted.id: admitted for admitted in self._failures.release()}
        return [trajectories[job.trajectory_id] for job in jobs]

    async def _load_weights(self, model: PreTrainedModel, version: int) -> EmbeddedPolicy:
        """Return the policy with the weights of ``model``."""
        if self._policy is None:
            self._policy = EmbeddedPolicy(Engine(_empty_copy(model), self._config.engine), PHASE)
        await self._policy.load_state(model.state_dict(), version)
        return self._policy

    async def _close(self) -> None:
        if self._policy is not None:
            await self._policy.close()
        await self._backend.close()


def _empty_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Make a model like ``model`` with random weights: accelerate binds `forward`, so a deep copy would run it."""
    parameter = next(model.parameters())
    with torch.random.fork_rng():
        copy: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=parameter.dtype)
    return torch.nn.Module.to(copy, device=parameter.device)


def open_episodes(
    tasks: Path, model: Path, config: RolloutConfig | None = None, *, store: RunStore | None = None
) -> Episodes:
    """Open episodes on a folder of tasks, with the tokenizer of a model folder and the sandboxes of this machine.

    Raises:
        InputError: ``tasks`` holds no tasks, or ``model`` no tokenizer.
        SandboxError: this machine has no sandbox of the configured kind.
        ConfigError: TRL is missing or has another version, or episodes of ``config`` do not fit its rows.
    """
    require_extra("trl")
    config = config or RolloutConfig()
    layers = LayerStore(config=config.layers)
    return Episodes(
        TaskStore(tasks).load(),
        load_tokenizer(model),
        config,
        create_backend(config.sandbox),
        lambda task: task_layers(task, layers),
        store=store,
        layer_store=layers,
    )


@dataclass(frozen=True)
class Row:
    """One episode under TRL's names. The three lists of the completion have one length, at least 1."""

    prompt_ids: list[int]
    """Everything before the first sampled token."""
    completion_ids: list[int]
    """From the first sampled token to the last, observations between them included."""
    logprobs: list[float]
    """Under the sampling policy; 0.0 where the environment wrote."""
    env_mask: list[int]
    """1 where the policy sampled, 0 where the environment wrote."""


def make_row(trajectory: Trajectory, stop_token_id: int) -> Row:
    """Make the row of an episode; without learned tokens where it is invalid or sampled nothing.

    TRL needs a token in an empty completion: ``stop_token_id``. `ValueError` for a history that forked.
    """
    if trajectory.ledger.branches:
        raise ValueError(f"trajectory {trajectory.id}: its history forked, but a row of TRL holds one history")
    ids = trajectory.ledger.token_id
    sample = policy_sample(trajectory, 0.0) if trajectory.verdict.is_valid else None
    learned = np.flatnonzero(sample.weight) if sample is not None else np.empty(0, int)
    if sample is None or not len(learned):
        prompt = ids[: int(np.argmax(trajectory.ledger.is_action))] if trajectory.ledger.is_action.any() else ids
        return Row(prompt.tolist() or [stop_token_id], [stop_token_id], [0.0], [0])
    start, end = int(learned[0]), int(learned[-1]) + 1
    return Row(
        prompt_ids=ids[:start].tolist(),
        completion_ids=ids[start:end].tolist(),
        logprobs=sample.old_log_prob[start:end].tolist(),
        env_mask=(sample.weight[start:end] > 0).astype(int).tolist(),
    )


def make_output(trajectories: Sequence[Trajectory], stop_token_id: int) -> dict[str, list[Any]]:
    """Return the output of a `rollout_func`, with the verdicts for `verdict_reward`."""
    rows = [make_row(trajectory, stop_token_id) for trajectory in trajectories]
    verdicts = [trajectory.verdict for trajectory in trajectories]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "env_mask": [row.env_mask for row in rows],
        "verdict": [verdict.kind.value for verdict in verdicts],
        "reward": [verdict.reward if verdict.is_valid else None for verdict in verdicts],
    }


def verdict_reward(
    *,
    verdict: Sequence[str],
    reward: Sequence[float | None],
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return our grader's rewards, None for *invalid*; TRL logs the share of each verdict as ``verdicts/<kind>``."""
    if log_metric is not None:
        for kind in VerdictKind:
            log_metric(f"verdicts/{kind.value}", sum(name == kind.value for name in verdict) / len(verdict))
    return list(reward)
