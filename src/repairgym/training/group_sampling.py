"""The groups of one iteration: sample tasks in curriculum order until enough groups have unequal rewards.

Reads training tasks and the rewards of earlier iterations. Makes a `RolloutBatch` and records the status of each group.
Guarantees: the tasks of an iteration follow from the seed and the earlier rewards; each refill uses the newest weights;
an iteration without a single valid verdict stops the run and never counts as failed.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from repairgym.config.exploration import NoveltyConfig, PrefixSamplingConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, SandboxError
from repairgym.learning.curriculum import interleave, optimistic_order, task_order
from repairgym.learning.rewards import Rewards, make_shaping
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import OWN
from repairgym.tasks.solve_rates import rates_of
from repairgym.training.novelty import Novelty
from repairgym.training.rollout_batch import (
    KEPT,
    RolloutBatch,
    advantages_of,
    is_stale,
    make_trajectory_groups,
    record_group_status,
)
from repairgym.training.run import Run
from repairgym.training.trees import plan_groups

_EVERY = "every source"


class GroupSampler:
    """Samples the groups of one phase (DAPO's dynamic sampling, arXiv 2503.14476 section 3.2, with a cap)."""

    def __init__(
        self,
        run: Run,
        config: RlConfig,
        phase: str,
        newest: Callable[[], PolicyRef],
        task_ids: Collection[str] | None = None,
    ) -> None:
        """Prepare; ``newest`` returns the weights to sample from, and is called before each refill.

        Raises:
            ConfigError: there are no training tasks, or none of a source that has a share.
        """
        self._run = run
        self._config = config
        self._phase = phase
        self._newest = newest
        selected = run.select(config.select, phase)
        chosen = [task for task in selected if task_ids is None or task.id in task_ids]
        self._task_ids = by_source(chosen, config.source_shares, phase)
        self._reference_rewards = reference_rewards(chosen, config.select)
        self._shares: dict[str, float] = {str(source): share for source, share in config.source_shares.items()}
        self._shaping = make_shaping(config.reward, run.pool.config.pipeline.max_episode_turns)
        exploration = config.exploration
        self._novelty = Novelty(exploration, run.store, phase) if isinstance(exploration, NoveltyConfig) else None

    def sample(self, step: int) -> RolloutBatch:
        """Sample groups until enough have unequal rewards, or until `max_refills` is used up.

        Raises:
            SandboxError: every episode is invalid; they are dropped, so a resumed run samples them again.
        """
        started = time.monotonic()
        batch = RolloutBatch(step)
        order = self._task_order(step)
        size = self._config.num_groups_sampled
        for _ in range(1 + self._config.max_refills):
            task_ids, order = order[:size], order[size:]
            if not task_ids:
                break
            self._add_groups(batch, task_ids)
            missing = self._config.num_groups - batch.num_kept_groups
            if missing <= 0:
                break
            kept_share = max(0.25, batch.num_kept_groups / max(1, len(batch.groups)))
            size = min(self._config.num_groups_sampled, round(missing / kept_share))
        self._require_valid_rollouts(batch)
        record_group_status(self._run.store, self._phase, batch)
        batch.metrics = self._novelty.metrics(batch.trajectories, step) if self._novelty else {}
        batch.rollout_s = time.monotonic() - started
        return batch

    def _add_groups(self, batch: RolloutBatch, task_ids: Sequence[str]) -> None:
        step = batch.step
        size = self._config.algorithm.group_size
        earlier = partial(self._earlier, step)
        jobs, trees = plan_groups(self._config.tree, self._phase, step, task_ids, size, self._run.seed, earlier)
        label = f"{self._phase} {step}"
        fresh: list[Trajectory] = []
        for trajectory in self._run.run_jobs(
            self._newest(), jobs, phase=self._phase, step=step, label=label, trees=trees
        ):
            is_dropped = is_stale(trajectory, step, self._config.max_staleness)
            (batch.stale if is_dropped else fresh).append(trajectory)
        batch.trajectories += fresh
        batch.groups += make_trajectory_groups(fresh, partial(self._rewards, step=step))
        is_steered = isinstance(self._config.tree, PrefixSamplingConfig)
        batch.advantages = advantages_of(batch.groups, self._config.algorithm, is_split=is_steered)

    def _earlier(self, step: int, task_id: str) -> list[Trajectory]:
        """The policy's own valid episodes of a task before ``step``, the latest first, a few of each reward."""
        rows = [row for phase in (OWN, self._phase) for row in self._run.store.rows(phase=phase, task_ids=[task_id])]
        before = [row for row in rows if row.reward is not None and (row.phase == OWN or row.step < step)]
        before.sort(key=lambda row: (row.phase == self._phase, row.step, row.id), reverse=True)
        counts, chosen = Counter[float](), []
        num = self._config.tree.num_earlier if isinstance(self._config.tree, PrefixSamplingConfig) else 0
        for row in before:
            counts[row.reward or 0.0] += 1
            if counts[row.reward or 0.0] <= num:
                chosen.append(self._run.store.trajectory(row.id))
        return chosen

    def _require_valid_rollouts(self, batch: RolloutBatch) -> None:
        if any(trajectory.verdict.is_valid for trajectory in batch.trajectories) or batch.stale:
            return
        reason = batch.trajectories[-1].verdict.reason
        num = self._run.store.drop_invalid(phase=self._phase, step=batch.step)
        text = f"iteration {batch.step}: all {num} episodes are invalid; the last: {reason}"
        self._run.store.add_event("all_invalid", text, phase=self._phase)
        raise SandboxError(f"{text}. Run `repairgym doctor`, fix the cause, then resume: they are run again")

    def _rewards(self, group: Sequence[Trajectory], step: int) -> Rewards:
        rewards = self._shaping(self._run.tasks[group[0].task_id], group)
        return self._novelty.add_to(rewards, group, step) if self._novelty else rewards

    def _task_order(self, step: int) -> list[str]:
        curriculum, seed = self._config.curriculum, self._run.seed
        order: Callable[[Sequence[str]], list[str]] = partial(task_order, seed=seed, iteration=step)
        if curriculum != "uniform":
            groups = self._past_groups(step)
            latest = {task_id: rewards for task_id, past in groups.items() for _, rewards in past[-1:]}
            order = partial(task_order, seed=seed, iteration=step, rewards=latest)
            if curriculum == "optimistic":
                order = partial(optimistic_order, seed=seed, iteration=step, groups=groups)
        orders = {source: order(task_ids) for source, task_ids in self._task_ids.items()}
        return interleave(orders, self._shares) if self._shares else orders[_EVERY]

    def _past_groups(self, step: int) -> dict[str, list[tuple[int, list[float]]]]:
        """Return age and rewards of each task's groups before ``step``, the latest last.

        The policy's own rollouts come before them. A task without any has those of the reference policy that the
        selection names, if any.
        """
        groups: dict[str, dict[tuple[bool, int], list[float]]] = defaultdict(dict)
        for row in [*self._run.store.rows(phase=OWN), *self._run.store.rows(phase=self._phase)]:
            is_of_phase = row.phase == self._phase
            if row.reward is not None and not (is_of_phase and row.step >= step):
                key = is_of_phase, row.step if is_of_phase else 0
                groups[row.task_id].setdefault(key, []).append(row.reward)
        known = {
            task_id: [(step - number, rewards) for (_, number), rewards in sorted(past.items())]
            for task_id, past in groups.items()
        }
        return {task_id: [(step, rewards)] for task_id, rewards in self._reference_rewards.items()} | known


def reference_rewards(tasks: Collection[Task], selection: TaskSelection) -> dict[str, list[float]]:
    """Return task id -> rewards of the samples of the reference policy; none where ``selection`` names no rates."""
    if not selection.solve_rates:
        return {}
    rates = rates_of(Path(selection.solve_rates), selection.solved_by, tasks)
    return {i: [1.0] * rate.num_passed + [0.0] * (rate.num_valid - rate.num_passed) for i, rate in rates.items()}


def by_source(tasks: Iterable[Task], shares: Collection[str], phase: str) -> dict[str, list[str]]:
    """Return source -> ids of its training tasks; without shares all are under one name.

    `ConfigError`: there is none, or none of a source that has a share.
    """
    ids: dict[str, list[str]] = {source: [] for source in shares or (_EVERY,)}
    for task in tasks:
        source = task.source if shares else _EVERY
        if source in ids:
            ids[source].append(task.id)
    if empty := [source for source, known in ids.items() if not known]:
        of_what = f"of {', '.join(empty)}, which rl.source_shares gives a share" if shares else "among the chosen ids"
        raise ConfigError(f"{phase}: there is no training task {of_what}")
    return ids


def describe_signal(run: Run, phase: str) -> str:
    """Return how many groups of each source had unequal rewards, the only ones that teach, and why."""
    rewards: dict[str, set[float | None]] = defaultdict(set)
    for row in run.store.rows(phase=phase):
        rewards[row.group_id].add(row.reward)
    kept, every, num_shaped = Counter[str](), Counter[str](), 0
    for group in run.store.groups(phase=phase):
        source = run.tasks[group.task_id].source
        every[source] += 1
        kept[source] += group.status == KEPT
        num_shaped += group.status == KEPT and len(rewards[group.id] - {None}) < 2
    counts = [f"{source} {kept[source]} of {num}" for source, num in sorted(every.items())]
    reason = "without a pass or without a failure, by rl.reward or rl.exploration alone"
    shaped = f"; {num_shaped} of them {reason}" if num_shaped else ""
    verdict = "" if kept.total() else "; there was nothing to learn from"
    return f"groups with unequal rewards: {', '.join(counts) or 'none were sampled'}{shaped}{verdict}"
