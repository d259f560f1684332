"""A run folder and what every recipe needs of it: tasks, store, workers, checkpoints (its lock: `rollout/calls.py`).

Reads and makes the run folder: ``config.toml``, ``run.db``, ``tasks/``, ``checkpoints/``. Invariants: trajectory ids
follow from phase, step, task and index, so what is already in the store is never run again; the turns of an episode are
kept until its trajectory is stored.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.sandbox import SandboxConfig
from repairgym.config.selection import TaskSelection
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, PolicyRef, Pool, no_growth
from repairgym.rollout.names import TURNS_FOLDER
from repairgym.rollout.store import RunStore
from repairgym.rollout.turn_log import TurnLog
from repairgym.tasks.selection import select_tasks
from repairgym.training.trees import Growth

Progress = Callable[[str, int, int, str], None]
"""(phase, done, total, detail); total 0 when unknown."""


def no_progress(phase: str, done: int, total: int, detail: str) -> None:
    """Reports nothing."""


_DRAINING = "stopping: episodes in flight end first; Ctrl-C again stops at once"


@dataclass
class Run:
    """An open run."""

    folder: Path
    store: RunStore
    pool: Pool
    tasks: dict[str, Task]
    seed: int = 0
    progress: Progress = no_progress
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """Sandbox settings of the pool's workers; an evaluation rejects back ends without isolation."""

    def select(self, selection: TaskSelection, purpose: str = "") -> list[Task]:
        """Tasks that ``selection`` names, in a fixed order that mixes the packages; ``purpose`` is reported with them.

        Raises:
            ConfigError: there is none, or the run lacks an id that ``selection`` names.
            InputError: an id file cannot be read.
        """
        selected = select_tasks(self.tasks.values(), selection)
        if purpose:
            self.progress(purpose, 0, 0, selected.summary)
        return selected.tasks

    def checkpoint(self, stage: str) -> Path:
        """Model folder of a stage."""
        return self.folder / "checkpoints" / stage

    def policy(self, stage: str, *, temperature: float = 1.0, name: str = "", version: int = 0) -> PolicyRef:
        """The weights of a stage as a policy."""
        return PolicyRef(name or stage, str(self.checkpoint(stage)), version, temperature)

    def collect(
        self,
        policy: PolicyRef,
        jobs: Sequence[EpisodeJob],
        *,
        phase: str,
        step: int = 0,
        label: str = "",
        trees: Growth | None = None,
    ) -> Iterator[Trajectory]:
        """Run the jobs that the store does not hold yet; yields and stores each trajectory as it ends.

        ``trees``, which made ``jobs``, adds branches; those of stored members are made again before anything runs.
        """
        stored = self.store.trajectory_ids(phase=phase, step=step)
        turn_log = TurnLog(self.folder / TURNS_FOLDER)
        turn_log.forget(stored)
        missing, num_done = self._missing(jobs, stored, phase, step, trees)
        num_solved = 0
        for trajectory in self.pool.run(policy, missing, self.tasks, trees.grow if trees else no_growth):
            split = self.tasks[trajectory.task_id].split
            self.store.add_trajectory(trajectory, phase=phase, step=step, split=split)
            turn_log.forget([trajectory.id])
            num_done += 1
            num_solved += trajectory.verdict.is_valid and trajectory.verdict.reward > 0
            detail = _DRAINING if self.pool.is_draining else f"{num_solved} solved"
            self.progress(label or phase, num_done, trees.num_jobs if trees else len(jobs), detail)
            yield trajectory

    def _missing(
        self, jobs: Sequence[EpisodeJob], stored: Collection[str], phase: str, step: int, trees: Growth | None
    ) -> tuple[list[EpisodeJob], int]:
        """Return the jobs to run and the number of those that are stored."""
        ended = self.store.trajectories(phase=phase, step=step) if trees and stored else ()
        known = {trajectory.id: trajectory for trajectory in ended}
        waiting, missing, num_stored = deque(jobs), list[EpisodeJob](), 0
        while waiting:
            job = waiting.popleft()
            if job.trajectory_id not in stored:
                missing.append(job)
                continue
            num_stored += 1
            waiting += trees.grow(known[job.trajectory_id]) if trees else ()
        return missing, num_stored

    def run_jobs(
        self,
        policy: PolicyRef,
        jobs: Sequence[EpisodeJob],
        *,
        phase: str,
        step: int = 0,
        label: str = "",
        trees: Growth | None = None,
    ) -> list[Trajectory]:
        """All trajectories of ``jobs``, those of an earlier, interrupted run included, in the order of the jobs.

        The branches that ``trees`` adds follow the chains of their group.
        """
        for _ in self.collect(policy, jobs, phase=phase, step=step, label=label, trees=trees):
            pass
        wanted = {job.trajectory_id: number for number, job in enumerate(trees.jobs() if trees else jobs)}
        trajectories = [t for t in self.store.trajectories(phase=phase, step=step) if t.id in wanted]
        return sorted(trajectories, key=lambda trajectory: wanted[trajectory.id])
