"""verl's results in ``run.db``: trajectories, groups and metrics, stored as `repairgym train rl` stores them.

Reads arrivals of a verl run; makes trajectories, groups and metrics of the run store. Guarantees: an iteration is
settled once verl has learned it; iterations that verl repeats are deleted first; too many invalid episodes in a row
stop the run and are not stored.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from repairgym.bridges.verl.config_files import Stage, VerlPaths
from repairgym.bridges.verl.episodes import validation_phase
from repairgym.bridges.verl.outputs import SpooledTrajectory, read_spool
from repairgym.bridges.verl.trainer_process import Arrival, num_saved_updates
from repairgym.config.rollout import AlarmConfig
from repairgym.learning.rewards import make_shaping
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.pool import FailureStreak
from repairgym.training.alarms import check_alarms
from repairgym.training.rollout_batch import (
    RolloutBatch,
    advantages_of,
    make_trajectory_groups,
    overlong_metrics,
    record_group_status,
    rollout_metrics,
    weight_lag,
)
from repairgym.training.run import Run

METRIC_NAMES = {
    "actor/pg_loss": "train/loss",
    "actor/grad_norm": "optim/grad_norm",
    "actor/lr": "optim/learning_rate",
    "timing_s/gen": "time/rollout_s",
    "timing_s/update_actor": "time/update_s",
}
"""verl's name -> ours, where both mean the same; all others are stored as ``verl/...``. verl's entropy differs:
it is a mean by the loss's denominator, also over the empty rows that fill a batch, so it falls with the groups kept.
"""


class ResultRecorder:
    """Stores arrivals in the run store."""

    def __init__(self, run: Run, stage: Stage, alarms: AlarmConfig) -> None:
        self._run = run
        self._phase = stage.phase
        self._rl = stage.rl
        self._alarms = alarms
        self._streak = FailureStreak(stage.rollout.max_failures_in_row)
        self._held: dict[str, SpooledTrajectory] = {}
        self._num_ended = Counter[str]()
        self._shaping = make_shaping(stage.rl.reward, stage.rollout.pipeline.max_episode_turns)

    def begin(self, paths: VerlPaths) -> None:
        """Store the trajectories of a killed run, then delete the iterations and validations that verl repeats."""
        for spooled in read_spool(paths.spool):
            self._store(spooled)
        store, phase = self._run.store, self._phase
        first_step = num_saved_updates(paths)
        num_dropped = store.drop_steps(phase=phase, first_step=first_step)
        later = {validation_phase(phase, k) for k in range(first_step + 1, self._rl.max_iterations + 1)}
        for name in later & store.num_trajectories().keys():
            store.drop_steps(phase=name, first_step=0)
        if num_dropped:
            text = f"{num_dropped} episodes from iteration {first_step} on are deleted: verl repeats it"
            store.add_event("begun_again", text, phase=phase)
        if first_step and first_step - 1 not in dict(store.metrics(phase, "rollout/reward_mean")):
            # Killed between the checkpoint and the metrics of its iteration, which verl does not write again.
            self._end_iteration(first_step, {})

    def take(self, arrival: Arrival) -> None:
        """Store one arrival."""
        if isinstance(arrival, SpooledTrajectory):
            self._take_trajectory(arrival)
        else:
            self._end_iteration(arrival.num_updates, arrival.values)

    def _take_trajectory(self, spooled: SpooledTrajectory) -> None:
        if spooled.trajectory.id in self._held:
            return  # still in the spool because it is held back
        self._held[spooled.trajectory.id] = spooled
        label = f"{spooled.phase} {spooled.step}"
        self._num_ended[label] += 1
        self._run.progress(label, self._num_ended[label], 0, "episodes have ended")
        for trajectory in self._streak.admit(spooled.trajectory):
            self._store(self._held.pop(trajectory.id))

    def _store(self, spooled: SpooledTrajectory) -> None:
        self._run.store.add_trajectory(spooled.trajectory, phase=spooled.phase, step=spooled.step, split=spooled.split)
        if spooled.file is not None:
            spooled.file.unlink()

    def _end_iteration(self, num_updates: int, verl_metrics: Mapping[str, float]) -> None:
        for trajectory in self._streak.release():
            self._store(self._held.pop(trajectory.id))
        step, phase = num_updates - 1, self._phase
        batch = self._read_batch(step)
        metrics = {METRIC_NAMES.get(name, f"verl/{name}"): value for name, value in verl_metrics.items()}
        metrics |= rollout_metrics(batch) | overlong_metrics(batch.trajectories, self._rl.algorithm)
        metrics |= _sampled_entropy(batch)
        metrics["rollout/weight_lag"] = weight_lag(batch.trajectories, step)
        self._run.store.add_metrics(phase, step, metrics)
        self._run.store.add_metrics(phase, num_updates, self._validation(num_updates))
        check_alarms(self._run.store, phase, self._alarms, self._run.progress)
        detail = f"reward {metrics['rollout/reward_mean']:.2f}"
        self._run.progress(phase, num_updates, self._rl.max_iterations, detail)

    def _read_batch(self, step: int) -> RolloutBatch:
        """Return the iteration's groups as `RLLoop` counts them; stores their status."""
        trajectories = list(self._run.store.trajectories(phase=self._phase, step=step))
        groups = make_trajectory_groups(trajectories, lambda group: self._shaping(self._task(group[0]), group))
        advantages = advantages_of(groups, self._rl.algorithm)
        batch = RolloutBatch(step, trajectories, groups=groups, advantages=advantages)
        record_group_status(self._run.store, self._phase, batch)
        return batch

    def _task(self, trajectory: Trajectory) -> Task:
        return self._run.tasks[trajectory.task_id]

    def _validation(self, num_updates: int) -> dict[str, float]:
        """Return the result of the weights after ``num_updates``, as the RL loop stores it."""
        rows = self._run.store.rows(phase=validation_phase(self._phase, num_updates))
        passed = [row.verdict is VerdictKind.PASSED for row in rows]
        # As in an evaluation: an invalid episode counts as failed.
        return {"validation/pass_at_1": sum(passed) / len(passed)} if passed else {}


def _sampled_entropy(batch: RolloutBatch) -> dict[str, float]:
    """Return ``policy/entropy`` in nats per token: the mean of -log p over the tokens of kept groups."""
    ledgers = [
        member.ledger
        for group, advantages in zip(batch.groups, batch.advantages, strict=True)
        if not advantages.is_dropped
        for member, reward in zip(group.members, group.rewards, strict=True)
        if reward is not None
    ]
    if not ledgers:
        return {}
    return {"policy/entropy": -float(np.concatenate([ledger.log_prob[ledger.is_action] for ledger in ledgers]).mean())}
