"""The DAPO loop (paper B, sections 3.2 and 4.3): sample groups, drop equal ones and refill, update, repeat.

Reads training tasks and a start checkpoint; makes trajectories (step = iteration), metrics and checkpoints under the
name of its phase. Invariants: rollouts of iteration k come from the weights after k updates (synchronous, on-policy),
or after at least k - `max_staleness` where iterations are sampled while earlier ones are learned; no older token is
learned from; the tasks of an iteration follow from the seed and the rewards before it; a killed loop resumes from the
last saved update and repeats no stored episode.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mendwright.config.recipes import RlConfig
from mendwright.config.watch import AlarmConfig
from mendwright.errors import SandboxError
from mendwright.learning.advantages import GroupAdvantages
from mendwright.learning.checkpoints import MODEL_FOLDER
from mendwright.learning.curriculum import task_order
from mendwright.learning.rewards import make_shaping
from mendwright.learning.rewards.base import Rewards
from mendwright.models.loading import copy_folder
from mendwright.recipes.background import BackgroundUpdates
from mendwright.recipes.demonstrations import Demonstrations
from mendwright.recipes.groups import (
    Group,
    advantages_of,
    is_stale,
    make_trajectory_groups,
    most_spread,
    overlong_metrics,
    samples_of,
)
from mendwright.recipes.run import Run
from mendwright.recipes.sampler import open_sampler
from mendwright.recipes.updates import UpdateWork
from mendwright.recipes.watching import sound_alarms
from mendwright.recipes.weight_versions import WeightVersions
from mendwright.records import StopReason, Trajectory, VerdictKind
from mendwright.rollout.jobs import PolicyRef, make_groups
from mendwright.tools.roles import is_blind_submit

PHASE = "dapo"
_STOPPING = "stopping: the update that runs ends first; Ctrl-C again stops at once"


@dataclass
class Collected:
    """What one iteration sampled."""

    step: int = 0
    """The iteration."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """Those that are not stale."""
    stale: list[Trajectory] = field(default_factory=list)
    """Those of older weights than `max_staleness` allows: dropped, in no group."""
    rollout_s: float = 0.0
    groups: list[Group] = field(default_factory=list)
    advantages: list[GroupAdvantages] = field(default_factory=list)

    @property
    def shaped_rewards(self) -> list[float]:
        """Of the valid trajectories: what the learner gets."""
        return [reward for group in self.groups for reward in group.rewards if reward is not None]

    @property
    def num_kept_groups(self) -> int:
        """Groups that teach something."""
        return sum(not found.is_dropped for found in self.advantages)

    @property
    def num_equal_groups(self) -> int:
        """Groups of equal rewards."""
        return sum(found.drop_reason == "equal_rewards" for found in self.advantages)

    @property
    def num_failed_groups(self) -> int:
        """Groups with fewer than two valid members; never mixed up with those of equal rewards."""
        return sum(found.drop_reason == "too_few_valid" for found in self.advantages)


class DapoLoop:
    """One RL run. Iterate over `iterations`; stop whenever you like, it resumes."""

    def __init__(
        self,
        run: Run,
        config: RlConfig,
        start: str,
        alarms: AlarmConfig | None = None,
        *,
        phase: str = PHASE,
        task_ids: Collection[str] | None = None,
    ) -> None:
        """Load the model; go on from the saved state where there is one.

        Args:
            run: Where everything lies.
            config: Sizes, algorithm, reward.
            start: Checkpoint to begin with.
            alarms: Bounds of the metrics.
            phase: Name of the trajectories, metrics and checkpoints.
            task_ids: Training tasks that are used; None: all.
        """
        run.training_tasks()  # raises before a model is loaded when there are none
        self._run = run
        self._config = config
        self._alarms = _allowing(alarms or AlarmConfig(), config.max_staleness)
        self._phase = phase
        self._task_ids = task_ids
        self._shaping = make_shaping(config.reward, run.pool.config.pipeline.max_episode_turns)
        self._state = run.checkpoint(state_name(phase))
        self._sampler = open_sampler(config, run.pool.config, run.checkpoint(start))
        self._updates = UpdateWork(run.checkpoint(start), self._state, config).lead()
        self._versions = WeightVersions(run.checkpoint(f"{phase}-versions")) if config.max_staleness else None
        self._demonstrations = Demonstrations(run.store, config.dapo.demonstration)
        self.num_done = self._updates.num_done
        self._sampled_version = self.num_done
        """Of the weights that the next episodes come from."""
        self._publish()

    def iterations(self) -> Generator[dict[str, float], None, None]:
        """Metrics of each iteration until `max_iterations`; the caller decides when time is up, and closes it then."""
        if self._versions is not None:
            yield from self._asynchronous(self._versions)
            return
        while self.num_done < self._config.max_iterations:
            metrics = self._learn(self._collect(self.num_done))
            self.num_done += 1
            yield metrics

    def _asynchronous(self, versions: WeightVersions) -> Generator[dict[str, float], None, None]:
        try:
            with BackgroundUpdates(self._learn, self.num_done) as updates:
                yield from self._sample_ahead(updates, versions)
        finally:
            self.num_done = self._updates.num_done

    def _sample_ahead(
        self, updates: BackgroundUpdates[Collected], versions: WeightVersions
    ) -> Generator[dict[str, float], None, None]:
        """Sample iterations with the newest weights, at most `max_staleness` ahead of those that are learned."""
        num_ahead, num_iterations = self._config.max_staleness, self._config.max_iterations
        try:
            for step in range(self.num_done, num_iterations + num_ahead + 1):
                for metrics in updates.finished(step - num_ahead):
                    self.num_done += 1
                    versions.forget_before(self.num_done)
                    yield metrics
                if step < num_iterations:
                    updates.submit(self._collect(step))
        except KeyboardInterrupt:
            self._run.progress(self._phase, 0, 0, _STOPPING)
            raise

    def _learn(self, collected: Collected) -> dict[str, float]:
        """One update, noted and saved; its metrics."""
        started = time.monotonic()
        metrics = self._update(collected) | rollout_metrics(collected)
        metrics["rollout/weight_lag"] = weight_lag([*collected.trajectories, *collected.stale], collected.step)
        if weight_lag(collected.trajectories, collected.step) > 0 and "policy/log_prob_gap" in metrics:
            # Of older weights: how far the policy has moved since, not how far sampler and learner differ.
            metrics["policy/stale_log_prob_gap"] = metrics.pop("policy/log_prob_gap")
        metrics |= overlong_metrics(collected.trajectories, self._config.dapo)
        metrics |= {"time/rollout_s": collected.rollout_s, "time/update_s": time.monotonic() - started}
        self._run.store.add_metrics(self._phase, collected.step, metrics)
        sound_alarms(self._run.store, self._phase, self._alarms, self._run.progress)
        self._updates.commit()
        self._publish()
        return metrics

    def keep(self, stage: str) -> None:
        """Copy the current weights to checkpoint ``stage``."""
        copy_folder(self._weights(self.num_done), self._run.checkpoint(stage))

    def policy(self, temperature: float = 1.0) -> PolicyRef:
        """The current weights: those after ``num_done`` updates."""
        return self._policy(self.num_done, temperature)

    def _policy(self, version: int, temperature: float) -> PolicyRef:
        return self._sampler.policy(self._phase, self._weights(version), version, temperature)

    def _weights(self, version: int) -> Path:
        return self._versions.path(version) if self._versions is not None else self._state / MODEL_FOLDER

    def _publish(self) -> None:
        """Sample with the weights as they are saved from now on; the metrics are those of the iteration they sample."""
        version = self._updates.num_done
        if self._versions is not None:
            self._versions.publish(self._state / MODEL_FOLDER, version)
        metrics = self._sampler.load(self._weights(version), version, self._updates.probe)
        if metrics:
            self._run.store.add_metrics(self._phase, version, metrics)
        # Last: in an asynchronous run another thread samples, and servers are asked for nothing they do not have yet.
        self._sampled_version = version

    def _update(self, collected: Collected) -> dict[str, float]:
        groups, advantages = collected.groups, collected.advantages
        if self._config.spread_share < 1.0:
            groups, advantages = most_spread(groups, advantages, self._config.spread_share)
        imitated, coefficient = self._demonstrations.choose(collected.groups, collected.step)
        return self._updates.lead(samples_of(groups, advantages, self._config.dapo), imitated, coefficient)

    def close(self) -> None:
        """Let the processes that follow this one go on to other work, and remove what only sampling needed."""
        self._updates.close()
        if self._versions is not None:
            self._versions.clear()

    def _collect(self, step: int) -> Collected:
        """Sample groups until enough of them have unequal rewards, or the refills are used up."""
        started = time.monotonic()
        collected = Collected(step)
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
        self._refuse_nothing_valid(collected)
        self._settle_groups(collected)
        collected.rollout_s = time.monotonic() - started
        return collected

    def _sample(self, collected: Collected, task_ids: Sequence[str]) -> None:
        """Add a group of each task."""
        step, policy = collected.step, self._policy(self._sampled_version, 1.0)
        jobs = make_groups(self._phase, step, task_ids, self._config.dapo.group_size, self._run.seed)
        label = f"{self._phase} {step}"
        fresh: list[Trajectory] = []
        for trajectory in self._run.run_jobs(policy, jobs, phase=self._phase, step=step, label=label):
            is_dropped = is_stale(trajectory, step, self._config.max_staleness)
            (collected.stale if is_dropped else fresh).append(trajectory)
        collected.trajectories += fresh
        collected.groups += make_trajectory_groups(fresh, self._rewards)
        collected.advantages = advantages_of(collected.groups, self._config.dapo)

    def _refuse_nothing_valid(self, collected: Collected) -> None:
        """Stop before an iteration without a single verdict counts as done; a resumed run samples it again."""
        if any(trajectory.verdict.is_valid for trajectory in collected.trajectories) or collected.stale:
            return
        reason = collected.trajectories[-1].verdict.reason
        num = self._run.store.drop_invalid(phase=self._phase, step=collected.step)
        text = f"iteration {collected.step}: all {num} episodes are invalid; the last: {reason}"
        self._run.store.add_event("all_invalid", text, phase=self._phase)
        raise SandboxError(f"{text}. Run `mend doctor`, mend the cause, then resume: they are run again")

    def _settle_groups(self, collected: Collected) -> None:
        """Say in the store what became of each group."""
        for group, found in zip(collected.groups, collected.advantages, strict=True):
            status = f"dropped_{found.drop_reason}" if found.is_dropped else "kept"
            self._run.store.set_group_status(
                group.id, phase=self._phase, step=collected.step, task_id=group.members[0].task_id, status=status
            )

    def _rewards(self, group: Sequence[Trajectory]) -> Rewards:
        return self._shaping.shape(self._run.tasks[group[0].task_id], group)

    def _order(self, step: int) -> list[str]:
        known = [task.id for task in self._run.training_tasks()]
        task_ids = [task_id for task_id in known if self._task_ids is None or task_id in self._task_ids]
        rewards = self._past_rewards(step) if self._config.curriculum == "learnability" else None
        return task_order(task_ids, self._run.seed, step, rewards)

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


def _allowing(alarms: AlarmConfig, max_staleness: int) -> AlarmConfig:
    """What is asked for gives no alarm."""
    return alarms.model_copy(update={"weight_lag": max(alarms.weight_lag, max_staleness)})


def state_name(phase: str) -> str:
    """Checkpoint folder with the training state of a stage."""
    return f"{phase}-state"


def rollout_metrics(collected: Collected) -> dict[str, float]:
    """Counts and means of what was sampled; means are over valid trajectories."""
    valid = [t for t in collected.trajectories if t.verdict.is_valid]
    num = max(1, len(valid))
    metrics = {
        "rollout/num_trajectories": float(len(collected.trajectories)),
        "rollout/num_stale": float(len(collected.stale)),
        "rollout/num_invalid": float(len(collected.trajectories) - len(valid)),
        "rollout/num_exploited": float(sum(t.verdict.kind is VerdictKind.EXPLOITED for t in valid)),
        "rollout/num_groups": float(len(collected.groups)),
        "rollout/reward_spread": sum(group.spread for group in collected.groups) / max(1, len(collected.groups)),
        "rollout/num_kept_groups": float(collected.num_kept_groups),
        "rollout/num_equal_groups": float(collected.num_equal_groups),
        "rollout/num_failed_groups": float(collected.num_failed_groups),
        "rollout/reward_mean": sum(t.verdict.reward for t in valid) / num,
        "rollout/shaped_reward_mean": sum(collected.shaped_rewards) / num,
        "rollout/restored_rate": sum(bool(t.verdict.is_restored) for t in valid) / num,
        "rollout/num_turns_mean": sum(len(t.turns) for t in valid) / num,
        "rollout/num_action_tokens_mean": sum(int(t.ledger.is_action.sum()) for t in valid) / num,
        "rollout/submit_rate": sum(t.stop_reason is StopReason.SUBMITTED for t in valid) / num,
        "rollout/blind_submit_rate": sum(is_blind_submit(t.stop_reason, t.turns) for t in valid) / num,
    }
    turns = [turn for t in valid for turn in t.turns]
    for kind in ("format", "tool"):
        metrics[f"rollout/{kind}_error_rate"] = sum(turn.error == kind for turn in turns) / max(1, len(turns))
    return metrics


def weight_lag(trajectories: Sequence[Trajectory], num_updates: int) -> float:
    """Updates that the oldest weights among the episodes' were behind; 0 is on-policy."""
    versions = (t.ledger.policy_version[t.ledger.is_action] for t in trajectories)
    return max((float(num_updates - found.min()) for found in versions if len(found)), default=0.0)
