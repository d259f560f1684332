"""Our episodes in a process of verl's: one sandbox back end, one grader, many episodes at a time.

Reads `EpisodeSettings` and rows of the data set; makes graded trajectories, leaves each in the spool and returns what
verl learns from. Invariants: the process makes one `Runner` per settings file, on first use; an invalid episode, which
the runner has tried again, is spooled and has no rows; step k of ours is verl's step k + 1, so that step 0 is sampled
with version 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairgym.bridges.verl.episode_settings import EpisodeSettings, read_settings
from repairgym.bridges.verl.outputs import Outcome, outcome_of
from repairgym.bridges.verl.spool import Spooled, spool
from repairgym.errors import InputError
from repairgym.inference.base import Policy
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.rewards import make_shaping
from repairgym.records import Split, Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, episode_seed
from repairgym.rollout.names import eval_phase
from repairgym.rollout.runner import Runner
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

VALIDATION: Split = "validation"
_HOSTS: dict[str, EpisodeHost] = {}


@dataclass(frozen=True)
class EpisodeRequest:
    """Which episode verl asks for."""

    task_id: str
    split: str
    step: int
    """Updates before it, as verl counts: its step less one."""
    group: str
    """verl's id of the group."""
    member: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> EpisodeRequest:
        """From what verl passes to an agent loop.

        Raises:
            InputError: the row was not made by `repairgym verl data`.
        """
        info = row.get("extra_info") or {}
        if not {"task_id", "split"} <= set(info):
            raise InputError("a row of the data set names no task; make the rows with `repairgym verl data`")
        step = int(row.get("global_steps", 1)) - (0 if info["split"] == VALIDATION else 1)
        return cls(
            str(info["task_id"]), str(info["split"]), step, str(row.get("uid", "")), int(row.get("session_id", 0))
        )


class EpisodeHost:
    """Runs episodes in this process."""

    def __init__(self, settings: EpisodeSettings, runner: Runner, tasks: Mapping[str, Task]) -> None:
        """Use ``runner`` for the ``tasks``, by id."""
        self._settings = settings
        self._runner = runner
        self._tasks = tasks
        turns = settings.rollout.pipeline.max_episode_turns
        self._shaping = make_shaping(settings.reward, turns)

    @classmethod
    def shared(cls, path: str) -> EpisodeHost:
        """The host of this process for a settings file."""
        if path not in _HOSTS:
            _HOSTS[path] = cls.from_settings(read_settings(Path(path)))
        return _HOSTS[path]

    @classmethod
    def from_settings(cls, settings: EpisodeSettings) -> EpisodeHost:
        """A host with real sandboxes.

        Raises:
            SandboxUnavailableError: this node cannot isolate.
            InputError: the tasks or the tokenizer are not there.
        """
        config = settings.rollout
        store = LayerStore(config=config.layers)
        renderer = ChatRenderer(load_tokenizer(Path(settings.tokenizer)))
        runner = Runner(config, create_backend(config.sandbox), lambda task: task_layers(task, store), renderer)
        return cls(settings, runner, {task.id: task for task in TaskStore(Path(settings.tasks)).load()})

    async def run(self, asked: EpisodeRequest, policy: Policy) -> tuple[Trajectory, Outcome]:
        """One episode, graded and spooled.

        Raises:
            InputError: the task is not in the folder of tasks.
        """
        task = self._tasks.get(asked.task_id)
        if task is None:
            raise InputError(f"the data set names task {asked.task_id!r}, which {self._settings.tasks} has not")
        (found,) = [done async for done in self._runner.run([self._job(asked)], {task.id: task}, policy)]
        phase, step = self._place(asked)
        spool(Path(self._settings.spool), Spooled(found, phase, step, task.split))
        return found, outcome_of(task, found, self._shaping, self._settings.overlong)

    def _job(self, asked: EpisodeRequest) -> EpisodeJob:
        phase, step = self._place(asked)
        group_id = f"{phase}/{step}/{asked.task_id}/{asked.group[:8]}"
        trajectory_id = f"{group_id}#{asked.member}"
        return EpisodeJob(trajectory_id, group_id, asked.task_id, episode_seed(self._settings.seed, trajectory_id))

    def _place(self, asked: EpisodeRequest) -> tuple[str, int]:
        """Phase and step in the run store; validations are evaluations of the weights after ``step`` updates."""
        if asked.split == VALIDATION:
            return validation_phase(self._settings.phase, asked.step), 0
        return self._settings.phase, asked.step


def validation_phase(phase: str, num_updates: int) -> str:
    """The phase of the validation after ``num_updates`` updates of ``phase``."""
    return eval_phase(f"{phase}-step-{num_updates:04d}", VALIDATION)
