"""Our tasks as a taskset of verifiers.

Reads a folder of tasks; makes `RepairTask` objects. Guarantees: the data of a task, which verifiers writes into every
trace, hold the issue text and the id, never the gold patch or hidden tests; the reward is our grader's verdict, and a
rollout without a verdict has an error instead of a reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.bridges.verifiers.shared_runner import find_task, open_runner
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import shipped_base
from repairgym.records import Split, VerdictKind
from repairgym.tasks.store import TaskStore

INFO_KEY = "repairgym"
"""Key of the episode's result in a trace's ``info``."""


class RepairData(vf.TaskData):
    """The data of a task for verifiers; its ``prompt`` is the issue text."""

    tasks: Path
    """Folder that holds the task; ``id`` names it there."""


class RepairTask(vf.Task[RepairData]):
    """One task."""

    @property
    def key(self) -> str:
        """Return the task's id."""
        return str(self.data.id)

    @vf.reward
    async def repaired(self, trace: vf.Trace) -> float:
        """Return 1.0 when the verdict is *passed*, else 0.0.

        Raises:
            KeyError: there is no verdict; verifiers records it as an error.
        """
        return float(trace.info[INFO_KEY]["reward"])

    @vf.metric
    async def exploited(self, trace: vf.Trace) -> float:
        """Return 1.0 when the verdict is *exploited*, else 0.0."""
        return float(trace.info[INFO_KEY]["verdict"] == VerdictKind.EXPLOITED.value)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Return whether the oracle's repair passes (`vf-validate`)."""
        task = find_task(self.data.tasks, self.key)
        runner = open_runner(RolloutConfig(), shipped_base())
        trajectory = await runner.run(task, ScriptedPolicy("oracle", runner.renderer), f"validate/{task.id}")
        return trajectory.verdict.kind is VerdictKind.PASSED


class RepairTasksetConfig(vf.TasksetConfig):
    """Selection of tasks."""

    tasks: Path = Path("tasks")
    """Folder of `repairgym tasks build`."""
    split: Split = "train"
    """``test`` and ``validation`` are for evaluation only."""


class RepairTaskset(vf.Taskset[RepairTask, RepairTasksetConfig]):
    """The tasks of one split, in file order."""

    def load(self) -> Iterator[RepairTask]:
        """Yield one `RepairTask` per task.

        Raises:
            InputError: the folder holds no tasks.
        """
        folder = self.config.tasks.absolute()
        for task in TaskStore(folder).load(split=self.config.split):
            yield RepairTask(RepairData(id=task.id, prompt=task.issue, tasks=folder), self.config.task)
