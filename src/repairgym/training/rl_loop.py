"""The RL loop (paper B, sections 3.2 and 4.3): sample groups, drop equal ones and refill, update, repeat.

`RLLoop` makes the iterations; `run_rl_stage` adds regular validation and the stage's checkpoint. Reads training tasks
and a start checkpoint. Makes trajectories (step = iteration), metrics and checkpoints under the name of the phase.
Guarantees: the episodes of iteration k come from the weights after k updates (on-policy), or after at least
k - `max_staleness` updates when sampling runs ahead of learning; older tokens are never learned; validation never
trains; a killed loop resumes from the last saved update and repeats no stored episode; a finished stage continues only
when `max_iterations` or `max_sampled_tokens` has grown.
"""

import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

from repairgym.config.algorithms import DegrpoLossConfig, SelfDistillationAdvantageConfig
from repairgym.config.exploration import PerturbationConfig, SearchTreeConfig
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import AlarmConfig, RolloutConfig
from repairgym.errors import ConfigError
from repairgym.inference.chat_template import ChatTemplate
from repairgym.inference.loading import copy_folder, load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.checkpoints import MODEL_FOLDER
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import RL, UPDATE_TIME, VALIDATION, eval_phase
from repairgym.training.alarms import check_alarms
from repairgym.training.asynchronous import BackgroundUpdates, WeightVersions
from repairgym.training.credit import credit_metrics
from repairgym.training.evaluate import evaluate, validation_metrics
from repairgym.training.feedback import hints_of
from repairgym.training.group_sampling import GroupSampler, describe_signal
from repairgym.training.perturbation import Perturbation, step_checkpoint
from repairgym.training.rollout_batch import (
    Demonstrations,
    RolloutBatch,
    most_spread,
    overlong_metrics,
    rollout_metrics,
    samples_of,
    weight_lag,
)
from repairgym.training.run import Run
from repairgym.training.token_signals import signals_of
from repairgym.training.updates import UpdateWork
from repairgym.training.weight_sync import open_sampler

OpenRun = Callable[[RolloutConfig], AbstractContextManager[Run]]
"""Opens the run folder with workers of this configuration: stages differ in turns, context and budgets."""
_STOPPING = "stopping: the running update ends first; Ctrl-C again stops at once"


class RLLoop:
    """One RL run. Iterate over `iterations`; stop at any time, the next call resumes."""

    def __init__(
        self,
        run: Run,
        config: RlConfig,
        start: str,
        alarms: AlarmConfig | None = None,
        *,
        phase: str = RL,
        task_ids: Collection[str] | None = None,
    ) -> None:
        """Load checkpoint ``start``, or the saved training state if there is one; arguments as of `run_rl_stage`."""
        # First: without training tasks it raises before a model is loaded.
        self._group_sampler = GroupSampler(run, config, phase, self._newest_policy, task_ids)
        self._run = run
        self._config = config
        if isinstance(config.algorithm.loss, DegrpoLossConfig):
            _check_choice_token(run, start)
        alarms = alarms or AlarmConfig()
        self._alarms = alarms.model_copy(update={"weight_lag": max(alarms.weight_lag, config.max_staleness)})
        self.phase = phase
        self._state = run.checkpoint(state_name(phase))
        self._weight_sync = open_sampler(config, run.pool.config, run.checkpoint(start))
        self._updates = UpdateWork(run.checkpoint(start), self._state, config).lead()
        self._versions = WeightVersions(run.checkpoint(f"{phase}-versions")) if config.max_staleness else None
        is_taught = isinstance(config.algorithm.advantage, SelfDistillationAdvantageConfig)
        self._renderer = ChatRenderer(load_tokenizer(run.checkpoint(start))) if is_taught else None
        self._demonstrations = Demonstrations(run.store, config.algorithm.demonstration)
        change = config.perturbation
        self._perturbation = Perturbation(change, run, phase, start) if isinstance(change, PerturbationConfig) else None
        self.num_done = self._updates.num_done
        self._sampled_version = self.num_done
        """Version of the weights that sample the next episodes."""
        self._publish()

    def iterations(self) -> Generator[dict[str, float], None, None]:
        """Yield the metrics of each iteration until a bound is reached; close the generator to stop earlier."""
        if self._versions is not None:
            yield from self._asynchronous(self._versions)
            return
        while self.num_done < self._config.max_iterations and not self._is_spent(self.num_done):
            metrics = self._learn(self._group_sampler.sample(self.num_done))
            self.num_done += 1
            yield metrics

    def _is_spent(self, step: int) -> bool:
        """Return whether the iterations before ``step`` have sampled the tokens; those of a branch's parent count once.

        Later ones may be stored, too: a kill came between their episodes and their update.
        """
        bound = self._config.max_sampled_tokens
        rows = self._run.store.rows(phase=self.phase) if bound is not None else []
        return bound is not None and sum(row.num_action_tokens for row in rows if row.step < step) >= bound

    def _asynchronous(self, versions: WeightVersions) -> Generator[dict[str, float], None, None]:
        try:
            with BackgroundUpdates(self._learn, self.num_done) as updates:
                yield from self._sample_ahead(updates, versions)
        finally:
            self.num_done = self._updates.num_done

    def _sample_ahead(
        self, updates: BackgroundUpdates[RolloutBatch], versions: WeightVersions
    ) -> Generator[dict[str, float], None, None]:
        """Sample with the newest weights, at most `max_staleness` iterations ahead of the learner."""
        num_ahead, num_iterations = self._config.max_staleness, self._config.max_iterations
        try:
            for step in range(self.num_done, num_iterations + num_ahead + 1):
                for metrics in updates.finished(step - num_ahead):
                    self.num_done += 1
                    versions.forget_before(self.num_done)
                    yield metrics
                if step < num_iterations and not self._is_spent(step):
                    updates.submit(self._group_sampler.sample(step))
        except KeyboardInterrupt:
            self._run.progress(self.phase, 0, 0, _STOPPING)
            raise

    def _learn(self, batch: RolloutBatch) -> dict[str, float]:
        """Make one update, record and save it; returns its metrics."""
        started = time.monotonic()
        metrics = self._update(batch) | rollout_metrics(batch) | batch.metrics
        metrics["rollout/weight_lag"] = weight_lag([*batch.trajectories, *batch.stale], batch.step)
        if weight_lag(batch.trajectories, batch.step) > 0 and "policy/log_prob_gap" in metrics:
            # Older weights: this is the change of the policy since, not a difference of sampler and learner.
            metrics["policy/stale_log_prob_gap"] = metrics.pop("policy/log_prob_gap")
        metrics |= overlong_metrics(batch.trajectories, self._config.algorithm)
        metrics |= credit_metrics(batch.groups, batch.advantages)
        metrics |= {"time/rollout_s": batch.rollout_s, UPDATE_TIME: time.monotonic() - started}
        self._run.store.add_metrics(self.phase, batch.step, metrics)
        self._run.store.add_signals(signals_of(batch.trajectories, self._updates.learned))
        check_alarms(self._run.store, self.phase, self._alarms, self._run.progress)
        self._updates.commit()
        self._publish()
        return metrics

    def _update(self, batch: RolloutBatch) -> dict[str, float]:
        groups, advantages = batch.groups, batch.advantages
        if self._config.spread_share < 1.0:
            groups, advantages = most_spread(groups, advantages, self._config.spread_share)
        demonstrations, coefficient = self._demonstrations.choose(batch.groups, batch.step)
        num_learned = self._config.tree.num_learned if isinstance(self._config.tree, SearchTreeConfig) else None
        samples = samples_of(groups, advantages, self._config.algorithm, num_learned)
        if self._renderer is not None:
            hints = hints_of(groups, self._renderer)
            samples = [replace(sample, hint=hints.get(sample.trajectory_id, ())) for sample in samples]
        metrics = self._updates.lead(samples, demonstrations, coefficient)
        if self._perturbation is not None:
            metrics |= self._perturbation.apply(self._updates.learner, samples, batch.step)
        return metrics

    def _publish(self) -> None:
        """Sample with the saved weights from now on; sync metrics belong to the iteration that these weights sample."""
        version = self._updates.num_done
        if self._versions is not None:
            self._versions.publish(self._state / MODEL_FOLDER, version)
        metrics = self._weight_sync.load(self._weights(version), version, self._updates.probe)
        if metrics:
            self._run.store.add_metrics(self.phase, version, metrics)
        # Last: in an asynchronous run another thread samples, and must not ask servers for weights they do not have.
        self._sampled_version = version

    def keep(self, stage: str) -> None:
        """Copy the current weights to checkpoint ``stage``."""
        copy_folder(self._weights(self.num_done), self._run.checkpoint(stage))

    def policy(self, temperature: float = 1.0) -> PolicyRef:
        """Return the weights after ``num_done`` updates as a policy."""
        return self._policy(self.num_done, temperature)

    def _newest_policy(self) -> PolicyRef:
        return self._policy(self._sampled_version, 1.0)

    def _policy(self, version: int, temperature: float) -> PolicyRef:
        return self._weight_sync.policy(self.phase, self._weights(version), version, temperature)

    def _weights(self, version: int) -> Path:
        return self._versions.path(version) if self._versions is not None else self._state / MODEL_FOLDER

    def close(self) -> None:
        """Release the follower processes and remove the folders that only sampling needed."""
        self._updates.close()
        if self._versions is not None:
            self._versions.clear()


def _check_choice_token(run: Run, start: str) -> None:
    """Check that the first token that the policy samples of a turn ends its thought or does not (DeGRPO)."""
    is_thinking = run.pool.config.pipeline.is_thinking
    if not (is_thinking and ChatTemplate(load_tokenizer(run.checkpoint(start)), is_thinking).opens_thought):
        raise ConfigError(
            "rl.algorithm.loss.type='degrpo' weighs the first token of a turn as the choice to think, and here that "
            "token is the same in both modes: thoughts are off, or the model writes '<think>' itself; take a model "
            "whose chat template opens the thought, with rollout.pipeline.thinking='kept' or 'dropped'"
        )


def state_name(phase: str) -> str:
    """Return the name of the checkpoint folder with a stage's training state."""
    return f"{phase}-state"


def has_successor(run: Run, stage: str, successors: Collection[str]) -> bool:
    """Return True, and say so, where one of ``successors`` has begun from ``stage``, which must stay as it is then."""
    for name in successors:
        is_started = run.store.phase_status(name) not in ("missing", "planned")
        if is_started or run.checkpoint(state_name(name)).exists():
            run.progress(stage, 0, 0, f"not continued: {name} has begun from it")
            return True
    return False


def run_rl_stage(
    run: Run,
    config: RlConfig,
    start: str,
    phase: str,
    alarms: AlarmConfig | None = None,
    task_ids: Collection[str] | None = None,
    *,
    is_over: Callable[[], bool] | None = None,
    keeps_checkpoints: bool = False,
) -> None:
    """Train from checkpoint ``start`` to checkpoint ``phase``.

    Args:
        run: Open run.
        config: Sizes, algorithm, reward.
        start: Checkpoint to begin with.
        phase: Name of the trajectories, metrics and checkpoint.
        alarms: Bounds of the metrics.
        task_ids: Training tasks to use; None: all.
        is_over: Called after each iteration, of earlier calls, too; True ends the stage before `max_iterations`.
        keeps_checkpoints: Validate the start as well, and keep the weights of each validation as checkpoint
            ``<phase>-step-<number>``; ``config.perturbation`` does so, too.

    Raises:
        ConfigError: ``config.perturbation`` has no validation tasks to see a plateau of.
    """
    is_perturbed = config.perturbation.type != "none"
    keeps_checkpoints = keeps_checkpoints or is_perturbed
    loop = RLLoop(run, config, start, alarms, phase=phase, task_ids=task_ids)
    tests = validation_tasks(run, config)
    if is_perturbed and not tests:
        raise ConfigError(f"rl.perturbation.type={config.perturbation.type!r} needs validation tasks; the run has none")
    with run.store.phase(phase):
        # Also where a kill came between an update and the end of its validation.
        if keeps_checkpoints or loop.num_done:
            _validate(run, loop, config, tests, keeps_checkpoints)
        with closing(loop.iterations()) as iterations:
            while not (loop.num_done and is_over and is_over()):
                if (metrics := next(iterations, None)) is None:
                    break
                detail = f"reward {metrics['rollout/reward_mean']:.2f}, {metrics['rollout/num_turns_mean']:.1f} turns"
                run.progress(phase, loop.num_done, 0 if is_over else config.max_iterations, detail)
                _validate(run, loop, config, tests, keeps_checkpoints)
        loop.keep(phase)
    loop.close()
    run.progress(phase, 0, 0, describe_signal(run, phase))


def validation_tasks(run: Run, config: RlConfig) -> list[Task]:
    """Return the validation tasks; none where nothing is validated, or where the run has none and none is asked for.

    Raises:
        ConfigError: the run lacks the tasks that ``config.validation`` asks for.
    """
    has_any = any(task.split == "validation" for task in run.tasks.values())
    if config.validation_every and (has_any or config.validation.is_narrowed):
        return run.select(config.validation, "validation")
    reason = "the run has no validation task" if config.validation_every else "rl.validation_every=0"
    run.progress("validation", 0, 0, f"none ({reason})")
    return []


def _validate(run: Run, loop: RLLoop, config: RlConfig, tasks: Sequence[Task], keeps_checkpoints: bool) -> None:
    """Validate every `validation_every` iterations; stored episodes are not run again."""
    if not config.validation_every or loop.num_done % config.validation_every:
        return
    stage = step_checkpoint(loop.phase, loop.num_done)
    if tasks:
        evaluate(run, stage, loop.policy(), VALIDATION, tasks, config.num_validation_samples)
        rows = run.store.rows(phase=eval_phase(stage, VALIDATION))
        run.store.add_metrics(loop.phase, loop.num_done, validation_metrics(rows))
    if keeps_checkpoints and loop.num_done:
        loop.keep(stage)
