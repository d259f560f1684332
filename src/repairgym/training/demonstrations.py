"""Demonstrations that an RL iteration imitates in addition to its own episodes: AHPO's gate or ForgER's decay.

Reads the passed trajectories that the run's earlier phases stored; makes supervised samples. Invariants: a
demonstration is of a task of this iteration and was graded as passed; which one follows from the task and the
iteration alone.
"""

from collections.abc import Sequence

from repairgym.config.algorithms import DecayingDemonstrationConfig, DemonstrationConfig, GatedDemonstrationConfig
from repairgym.errors import ConfigError
from repairgym.learning.samples import Sample, split_histories, supervised_sample
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.names import OWN, TEACHER
from repairgym.rollout.store import RunStore
from repairgym.training.rollout_batch import Group

PHASES = (TEACHER, OWN)
"""Phases whose successes demonstrate: the teacher's episodes, then the policy's own before RL."""


class Demonstrations:
    """The successes of a run's earlier phases by task, read from the store once they are asked for."""

    def __init__(self, store: RunStore, config: DemonstrationConfig) -> None:
        self._store = store
        self._config = config
        self._by_task: dict[str, list[Trajectory]] | None = None

    def choose(self, groups: Sequence[Group], iteration: int) -> tuple[list[Sample], float]:
        """Samples to imitate and the coefficient of their loss; one per task, and tasks without a success have none.

        Raises:
            ConfigError: demonstrations are asked for and the run holds none at all.
        """
        coefficient = demonstration_coefficient(self._config, iteration)
        if coefficient == 0.0:
            return [], 0.0
        known = self._known()
        task_ids = [group.members[0].task_id for group in groups if self._is_wanted(group)]
        chosen = [known[task_id][iteration % len(known[task_id])] for task_id in task_ids if task_id in known]
        histories = [history for trajectory in chosen for history in split_histories(trajectory)]
        return [supervised_sample(history, is_format_error_masked=True) for history in histories], coefficient

    def _is_wanted(self, group: Group) -> bool:
        if not isinstance(self._config, GatedDemonstrationConfig):
            return True
        passed = sum(member.verdict.kind is VerdictKind.PASSED for member in group.members)
        return passed < self._config.min_successes

    def _known(self) -> dict[str, list[Trajectory]]:
        if self._by_task is None:
            self._by_task = {}
            for phase in PHASES:
                # By id: the order in which episodes happened to end must not decide what is learned.
                for trajectory in sorted(self._store.trajectories(phase=phase), key=lambda trajectory: trajectory.id):
                    if trajectory.verdict.kind is VerdictKind.PASSED:
                        self._by_task.setdefault(trajectory.task_id, []).append(trajectory)
            if not self._by_task:
                raise ConfigError(
                    f"demonstration.type={self._config.type!r} imitates passed episodes of the phases {PHASES}, but "
                    "the run has none; collect them first, or set demonstration.type='none'"
                )
        return self._by_task


def demonstration_coefficient(config: DemonstrationConfig, iteration: int) -> float:
    """Factor of the imitation loss: 0 without demonstrations, constant with the gate, falling with the decay."""
    match config:
        case GatedDemonstrationConfig():
            return config.coefficient
        case DecayingDemonstrationConfig():
            left = max(0.0, 1.0 - iteration / config.num_iterations)
            return config.final_coefficient + (config.coefficient - config.final_coefficient) * left
        case _:
            return 0.0
