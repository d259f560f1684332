"""The DAPO loop (paper B, sections 3.2 and 4.3): sample groups, drop equal ones and refill, update, repeat.

Reads training tasks and a start checkpoint; makes trajectories (step = iteration), metrics and checkpoints under the
name of its phase. Invariants: rollouts of iteration k come from the weights after k updates (synchronous, on-policy),
or after at least k - `max_staleness` where iterations are sampled while earlier ones are learned; no older token is
learned from; a killed loop resumes from the last saved update and repeats no stored episode.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator
from pathlib import Path

from repairgym.config.recipes import RlConfig
from repairgym.config.watch import AlarmConfig
from repairgym.inference.loading import copy_folder
from repairgym.learning.checkpoints import MODEL_FOLDER
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.background import BackgroundUpdates
from repairgym.training.demonstrations import Demonstrations
from repairgym.training.group_sampling import GroupSampler
from repairgym.training.groups import most_spread, overlong_metrics, samples_of
from repairgym.training.rollout_batch import RolloutBatch, rollout_metrics, weight_lag
from repairgym.training.run import Run
from repairgym.training.updates import UpdateWork
from repairgym.training.watching import check_alarms
from repairgym.training.weight_sync import open_sampler
from repairgym.training.weight_versions import WeightVersions

PHASE = "rl"
_STOPPING = "stopping: the update that runs ends first; Ctrl-C again stops at once"


class RLLoop:
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
        # First: without training tasks it raises before a model is loaded.
        self._collector = GroupSampler(run, config, phase, self._newest_policy, task_ids)
        self._run = run
        self._config = config
        self._alarms = _allowing(alarms or AlarmConfig(), config.max_staleness)
        self._phase = phase
        self._state = run.checkpoint(state_name(phase))
        self._sampler = open_sampler(config, run.pool.config, run.checkpoint(start))
        self._updates = UpdateWork(run.checkpoint(start), self._state, config).lead()
        self._versions = WeightVersions(run.checkpoint(f"{phase}-versions")) if config.max_staleness else None
        self._demonstrations = Demonstrations(run.store, config.algorithm.demonstration)
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
            metrics = self._learn(self._collector.collect(self.num_done))
            self.num_done += 1
            yield metrics

    def _asynchronous(self, versions: WeightVersions) -> Generator[dict[str, float], None, None]:
        try:
            with BackgroundUpdates(self._learn, self.num_done) as updates:
                yield from self._sample_ahead(updates, versions)
        finally:
            self.num_done = self._updates.num_done

    def _sample_ahead(
        self, updates: BackgroundUpdates[RolloutBatch], versions: WeightVersions
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
                    updates.submit(self._collector.collect(step))
        except KeyboardInterrupt:
            self._run.progress(self._phase, 0, 0, _STOPPING)
            raise

    def _learn(self, collected: RolloutBatch) -> dict[str, float]:
        """One update, noted and saved; its metrics."""
        started = time.monotonic()
        metrics = self._update(collected) | rollout_metrics(collected)
        metrics["rollout/weight_lag"] = weight_lag([*collected.trajectories, *collected.stale], collected.step)
        if weight_lag(collected.trajectories, collected.step) > 0 and "policy/log_prob_gap" in metrics:
            # Of older weights: how far the policy has moved since, not how far sampler and learner differ.
            metrics["policy/stale_log_prob_gap"] = metrics.pop("policy/log_prob_gap")
        metrics |= overlong_metrics(collected.trajectories, self._config.algorithm)
        metrics |= {"time/rollout_s": collected.rollout_s, "time/update_s": time.monotonic() - started}
        self._run.store.add_metrics(self._phase, collected.step, metrics)
        check_alarms(self._run.store, self._phase, self._alarms, self._run.progress)
        self._updates.commit()
        self._publish()
        return metrics

    def keep(self, stage: str) -> None:
        """Copy the current weights to checkpoint ``stage``."""
        copy_folder(self._weights(self.num_done), self._run.checkpoint(stage))

    def policy(self, temperature: float = 1.0) -> PolicyRef:
        """The current weights: those after ``num_done`` updates."""
        return self._policy(self.num_done, temperature)

    def _newest_policy(self) -> PolicyRef:
        return self._policy(self._sampled_version, 1.0)

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

    def _update(self, collected: RolloutBatch) -> dict[str, float]:
        groups, advantages = collected.groups, collected.advantages
        if self._config.spread_share < 1.0:
            groups, advantages = most_spread(groups, advantages, self._config.spread_share)
        imitated, coefficient = self._demonstrations.choose(collected.groups, collected.step)
        return self._updates.lead(samples_of(groups, advantages, self._config.algorithm), imitated, coefficient)

    def close(self) -> None:
        """Let the processes that follow this one go on to other work, and remove what only sampling needed."""
        self._updates.close()
        if self._versions is not None:
            self._versions.clear()


def _allowing(alarms: AlarmConfig, max_staleness: int) -> AlarmConfig:
    """What is asked for gives no alarm."""
    return alarms.model_copy(update={"weight_lag": max(alarms.weight_lag, max_staleness)})


def state_name(phase: str) -> str:
    """Checkpoint folder with the training state of a stage."""
    return f"{phase}-state"
