"""A pool whose episodes are made by a function: for what a recipe does with its episodes, without model and sandbox."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from repairgym.config.rollout import RolloutConfig
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob, Grow, PolicyRef, no_growth


@dataclass
class ScriptedPool:
    """Answers each job with ``play``, in order."""

    config: RolloutConfig
    play: Callable[[PolicyRef, EpisodeJob, Task], Trajectory]
    is_draining: bool = False

    def counters(self) -> dict[str, float]:
        """Return nothing: nothing is counted."""
        return {}

    def run(
        self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow = no_growth
    ) -> Iterator[Trajectory]:
        """Yield one episode per job, those that ``grow`` adds included."""
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            trajectory = self.play(policy, job, tasks[job.task_id])
            waiting += grow(trajectory)
            yield trajectory
