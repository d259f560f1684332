"""Our tasks as a taskset of verifiers.

Reads a folder of tasks; makes `RepairTask` objects. Invariants: the data of a task, which verifiers writes into every
trace, hold the report and the id, never the repair or the tests that decide; the reward is the verdict of our grader,
and a rollout without one has an error instead of a reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.bridges.verifiers.running import find_task, open_runner
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import shipped_base
from repairgym.records import Split, VerdictKind
from repairgym.tasks.store import TaskStore

INFO_KEY = "repairgym"
"""Where a trace's ``info`` holds what came of the episode."""


class RepairData(vf.TaskData):
    """What verifiers knows of a task; its ``prompt`` is the report."""

    tasks: Path
    """Folder that holds the task; ``id`` names it there."""


class RepairTask(vf.Task[RepairData]):
    """One repair."""

    @property
    def key(self) -> str:
        """The task's id."""
        return str(self.data.id)

    @vf.reward
    async def repaired(self, trace: vf.Trace) -> float:
        """1.0 when our grader says *passed*, else 0.0.

        Raises:
            KeyError: there is no verdict, which verifiers records as an error.
        """
        return float(trace.info[INFO_KEY]["reward"])

    @vf.metric
    async def exploited(self, trace: vf.Trace) -> float:
        """1.0 when the verdict is *exploited*."""
        return float(trace.info[INFO_KEY]["verdict"] == VerdictKind.EXPLOITED.value)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the oracle's repair passes (`vf-validate`)."""
        task = find_task(self.data.tasks, self.key)
        runner = open_runner(RolloutConfig(), shipped_base())
        trajectory = await runner.run(task, ScriptedPolicy("oracle", runner.renderer), f"validate/{task.id}")
        return trajectory.verdict.kind is VerdictKind.PASSED


class RepairTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    tasks: Path = Path("tasks")
    """Folder of `repairgym tasks build`."""
    split: Split = "train"
    """``test`` and ``validation`` are for evaluation only."""


class RepairTaskset(vf.Taskset[RepairTask, RepairTasksetConfig]):
    """The tasks of one split, in file order."""

    def load(self) -> Iterator[RepairTask]:
        """One `RepairTask` per task.

        Raises:
            InputError: the folder holds no tasks.
        """
        folder = self.config.tasks.absolute()
        for task in TaskStore(folder).load(split=self.config.split):
            yield RepairTask(RepairData(id=task.id, prompt=task.issue, tasks=folder), self.config.task)
