"""The groups of one iteration: tasks in the order of a curriculum, sampled until enough groups have unequal rewards.

Reads training tasks and the rewards of earlier iterations; makes a `RolloutBatch`, and says in the store what became of
each group. Invariants: the tasks of an iteration follow from the seed and the rewards before it; every batch of groups
comes from the newest weights; an iteration without one verdict is never taken for one that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from repairgym.config.recipes import RlConfig
from repairgym.errors import SandboxError
from repairgym.learning.curriculum import task_order
from repairgym.learning.rewards import Rewards, make_shaping
from repairgym.records import Trajectory
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.training.groups import advantages_of, is_stale, make_trajectory_groups
from repairgym.training.rollout_batch import RolloutBatch, record_group_status
from repairgym.training.run import Run


class GroupSampler:
    """Samples groups for one phase of a run (DAPO's dynamic sampling, arXiv 2503.14476 section 3.2, with a cap)."""

    def __init__(
        self,
        run: Run,
        config: RlConfig,
        phase: str,
        newest: Callable[[], PolicyRef],
        task_ids: Collection[str] | None = None,
    ) -> None:
        """Sample nothing yet.

        Args:
            run: Where everything lies.
            config: Sizes, algorithm, reward.
            phase: Name of the trajectories.
            newest: The weights to sample from; asked for anew with each batch of groups.
            task_ids: Training tasks that are used; None: all.

        Raises:
            TaskError: there are no training tasks.
        """
        known = [task.id for task in run.training_tasks()]
        self._run = run
        self._config = config
        self._phase = phase
        self._newest = newest
        self._task_ids = [task_id for task_id in known if task_ids is None or task_id in task_ids]
        self._shaping = make_shaping(config.reward, run.pool.config.pipeline.max_episode_turns)

    def collect(self, step: int) -> RolloutBatch:
        """Sample groups until enough of them have unequal rewards, or the refills are used up.

        Raises:
            SandboxError: every episode is invalid; they are forgotten, so that a resumed run samples them again.
        """
        started = time.monotonic()
        collected = RolloutBatch(step)
        order = self._order(step)
        size = self._config.num_groups_sampled
        for _ in range(1 + self._config.max_refills):
            chosen, order = order[:size], order[size:]
            if not chosen:
                break
            self._sample(collected, chosen)
            missing = self._config.num_groups - collected.num_kept_groups
            if missing <= 0:
                break
            yield_share = max(0.25, collected.num_kept_groups / max(1, len(collected.groups)))
            size = min(self._config.num_groups_sampled, round(missing / yield_share))
        self._require_valid_rollouts(collected)
        record_group_status(self._run.store, self._phase, collected)
        collected.rollout_s = time.monotonic() - started
        return collected

    def _sample(self, collected: RolloutBatch, task_ids: Sequence[str]) -> None:
        """Add a group of each task."""
        step = collected.step
        jobs = make_groups(self._phase, step, task_ids, self._config.algorithm.group_size, self._run.seed)
        label = f"{self._phase} {step}"
        fresh: list[Trajectory] = []
        for trajectory in self._run.run_jobs(self._newest(), jobs, phase=self._phase, step=step, label=label):
            is_dropped = is_stale(trajectory, step, self._config.max_staleness)
            (collected.stale if is_dropped else fresh).append(trajectory)
        collected.trajectories += fresh
        collected.groups += make_trajectory_groups(fresh, self._rewards)
        collected.advantages = advantages_of(collected.groups, self._config.algorithm)

    def _require_valid_rollouts(self, collected: RolloutBatch) -> None:
        """Stop before an iteration without a single verdict counts as done."""
        if any(trajectory.verdict.is_valid for trajectory in collected.trajectories) or collected.stale:
            return
        reason = collected.trajectories[-1].verdict.reason
        num = self._run.store.drop_invalid(phase=self._phase, step=collected.step)
        text = f"iteration {collected.step}: all {num} episodes are invalid; the last: {reason}"
        self._run.store.add_event("all_invalid", text, phase=self._phase)
        raise SandboxError(f"{text}. Run `repairgym doctor`, fix the cause, then resume: they are run again")

    def _rewards(self, group: Sequence[Trajectory]) -> Rewards:
        return self._shaping.shape(self._run.tasks[group[0].task_id], group)

    def _order(self, step: int) -> list[str]:
        rewards = self._past_rewards(step) if self._config.curriculum == "learnability" else None
        return task_order(self._task_ids, self._run.seed, step, rewards)

    def _past_rewards(self, step: int) -> dict[str, list[float]]:
        """Rewards of the latest group of each task, from iterations before ``step`` or the policy's own rollouts."""
        found: dict[str, tuple[str, list[float]]] = {}
        rows = [*self._run.store.rows(phase="own"), *self._run.store.rows(phase=self._phase)]
        for row in rows:
            if row.reward is None or (row.phase == self._phase and row.step >= step):
                continue
            group = f"{row.phase}:{row.step}"
            if row.task_id not in found or found[row.task_id][0] != group:
                found[row.task_id] = (group, [])
            found[row.task_id][1].append(row.reward)
        return {task_id: rewards for task_id, (_, rewards) in found.items()}
