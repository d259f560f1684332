"""RL with verl as the learner (paper A's own stack): our tasks, episodes, verdicts and store, verl's updates.

1. The configuration of `repairgym train rl`, `distill_then_grpo` or `dapo_two_stage` becomes stages. Values that verl
   cannot carry out are rejected by name before the first stage begins.
2. verl's trainer runs as a child process: FSDP2 learns, vLLM or the embedded engine samples, our agent loop runs
   episodes in real sandboxes.
3. Trajectories, groups and metrics go to ``run.db`` under the names that `repairgym train rl` uses; so do checkpoints.
   An iteration is settled once verl has learned it; iterations that verl repeats are deleted first; too many invalid
   episodes in a row stop the run and are not stored.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from repairgym.bridges.verl.config_files import Stage, VerlPaths, paths_of, sized, write_stage
from repairgym.bridges.verl.demands import host_parts, stage_demands
from repairgym.bridges.verl.episodes import validation_phase
from repairgym.bridges.verl.outputs import SpooledTrajectory, read_spool
from repairgym.bridges.verl.trainer_process import LOG_FILE, Arrival, num_saved_updates, run_verl, saved_model
from repairgym.bridges.verl.translation import translate
from repairgym.config.cluster import VerlConfig, VerlRecipe
from repairgym.config.recipes import DistillThenGrpoConfig, RlCommandConfig, TwoStageConfig
from repairgym.config.rollout import AlarmConfig
from repairgym.errors import ConfigError, install_hint
from repairgym.inference.loading import copy_folder
from repairgym.learning.rewards import make_shaping
from repairgym.recipes.dapo_two_stage import STAGE_1, STAGE_2, START, extend, select_tasks_again
from repairgym.recipes.distill_then_grpo import GRPO
from repairgym.records import Task
from repairgym.rollout.names import RL, UPDATE_TIME
from repairgym.rollout.pool import FailureStreak
from repairgym.sizing.host_memory import check_host
from repairgym.sizing.positions import check_demand, read_positions
from repairgym.sizing.preflight import Room, dense_shape
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.training.alarms import check_alarms
from repairgym.training.evaluate import validation_metrics
from repairgym.training.rl_loop import validation_tasks
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

AGENT_NAME = "repairgym"
METRIC_NAMES = {
    "actor/pg_loss": "train/loss",
    "actor/grad_norm": "optim/grad_norm",
    "actor/lr": "optim/learning_rate",
    "timing_s/gen": "time/rollout_s",
    "timing_s/update_actor": UPDATE_TIME,
}
"""verl's name -> ours, where both mean the same; all others are stored as ``verl/...``. verl's entropy differs:
it is a mean by the loss's denominator, also over the empty rows that fill a batch, so it falls with the groups kept.
"""


VerlSource = RlCommandConfig | DistillThenGrpoConfig | TwoStageConfig
SOURCES: dict[VerlRecipe, type[VerlSource]] = {
    "rl": RlCommandConfig,
    "distill_then_grpo": DistillThenGrpoConfig,
    "dapo_two_stage": TwoStageConfig,
}
"""Recipe -> the configuration of its command."""


def stages_of(config: VerlSource, comments: Mapping[str, str] | None = None) -> list[Stage]:
    """Return the stages of RL of a recipe, without paper A's supervised part, which comes before and does not use verl.

    `ConfigError`: episodes are to run on a cluster of our own.
    """
    if isinstance(config, RlCommandConfig) and config.cluster.is_used:
        raise ConfigError(
            f"cluster.address={config.cluster.address!r}: verl places episodes next to its own processes; leave "
            "cluster.* out and name a running Ray cluster as verl.ray_address"
        )
    if isinstance(config, TwoStageConfig):
        return [
            Stage(phase, stage.rl, stage.rollout, config.seed, _below(comments, name))
            for phase, name, stage in ((STAGE_1, "stage_1", config.stage_1), (STAGE_2, "stage_2", config.stage_2))
        ]
    phase = GRPO if isinstance(config, DistillThenGrpoConfig) else RL
    return [Stage(phase, config.rl, config.rollout, config.seed, comments)]


def check_stages(stages: Iterable[Stage], machine: VerlConfig) -> None:
    """Check, before the first stage begins, that verl can carry out all; `ConfigError` names the other values."""
    for stage in stages:
        translate(stage.rl, stage.rollout, machine, stage.seed)


def check_contexts(model: Path, config: VerlSource, machine: VerlConfig, room: Room | None = None) -> Iterator[str]:
    """Yield what verl, and what it samples with, ask for in each stage; `ConfigError` where that cannot be met.

    Nothing is loaded. ``room`` is this machine's, which says nothing of the nodes of a running Ray cluster.
    """
    shape, room = dense_shape(model), room or Room()
    for stage in stages_of(config):
        positions = read_positions(model, _yarn_factor(config, stage.phase))
        if machine.engine == "vllm" and (idle := stage.rollout.describe_idle_engine("vLLM")):
            yield idle
        for demand in stage_demands(shape, stage, machine, room.gpu_bytes):
            yield check_demand(positions, demand)
        if shape and room.host_bytes is not None and not machine.ray_address:
            parts = host_parts(shape, stage, machine)
            if parts:
                yield check_host(str(model), parts, room.host_bytes, is_here=room.is_here)


def _yarn_factor(config: VerlSource, phase: str) -> float:
    if isinstance(config, TwoStageConfig):
        return (config.stage_1 if phase == STAGE_1 else config.stage_2).yarn_factor
    return 1.0


def _below(comments: Mapping[str, str] | None, section: str) -> dict[str, str] | None:
    if comments is None:
        return None
    prefix = f"{section}."
    return {key.removeprefix(prefix): comment for key, comment in comments.items() if key.startswith(prefix)}


def train_with_verl(
    run: Run, config: VerlSource, machine: VerlConfig, tasks: Path, comments: Mapping[str, str] | None = None
) -> str:
    """Run all stages of ``config`` from checkpoint ``start``; returns the name of the last checkpoint."""
    stages = stages_of(config, comments)
    check_stages(stages, machine)
    start = START
    task_ids: list[str] | None = None
    for stage in stages:
        if stage.phase == STAGE_2 and isinstance(config, TwoStageConfig):
            task_ids = select_tasks_again(run, config.select)
        start = extend(run, start, _yarn_factor(config, stage.phase), stage.phase)
        paths = paths_of(run.folder, stage.phase, start, tasks)
        run_verl_stage(run, stage, machine, paths, config.watch.alarms, task_ids)
        start = stage.phase
    return start


def run_verl_stage(
    run: Run,
    stage: Stage,
    machine: VerlConfig,
    paths: VerlPaths,
    alarms: AlarmConfig,
    task_ids: Iterable[str] | None = None,
) -> None:
    """Train from ``paths.model`` to checkpoint ``stage.phase``; a killed run resumes from verl's last checkpoint.

    Raises:
        ConfigError: verl has no counterpart of a value, or there are too few tasks for an iteration.
        SandboxError: too many episodes in a row are invalid.
        RepairGymError: verl failed.
    """
    tests = validation_tasks(run, stage.rl)
    if not tests:
        stage = replace(stage, rl=stage.rl.model_copy(update={"validation_every": 0}))
    stage = sized(stage, machine)
    is_unfinished = num_saved_updates(paths) < stage.rl.max_iterations
    if is_unfinished:
        _write_data(run, stage, paths, task_ids, tests)
        write_stage(stage, machine, paths)
    recorder = ResultRecorder(run, stage, alarms)
    recorder.begin(paths)
    if is_unfinished:
        num_workers, in_flight = stage.rollout.num_workers, stage.rollout.max_in_flight
        text = f"verl is starting, {num_workers} workers with up to {in_flight} episodes; its own output: "
        run.progress(stage.phase, 0, 0, f"{text}{paths.folder / LOG_FILE}")
        with run.store.phase(stage.phase):
            for arrival in run_verl(paths, machine):
                recorder.take(arrival)
    if is_unfinished or not run.checkpoint(stage.phase).exists():
        copy_folder(saved_model(paths), run.checkpoint(stage.phase))


def _write_data(
    run: Run, stage: Stage, paths: VerlPaths, task_ids: Iterable[str] | None, tests: Sequence[Task]
) -> None:
    selected = None if task_ids is None else set(task_ids)
    tasks = [task for task in run.select(stage.rl.select, stage.phase) if selected is None or task.id in selected]
    if len(tasks) < stage.rl.num_groups_sampled:
        raise ConfigError(
            f"rl.num_groups_sampled={stage.rl.num_groups_sampled}, but there are {len(tasks)} training tasks, and verl "
            "draws a task once per pass; lower it or give more tasks"
        )
    write_rows(tasks, paths.train_rows)
    # verl wants a file also where nothing is validated.
    write_rows(tests or tasks[:1], paths.validation_rows)


def rows_of(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Make one row per task, which names it and holds nothing that its agent may not see.

    verl requires a prompt. The issue text is there for people who look at the file; the pipeline makes the prompt that
    an agent reads when its episode opens.
    """
    return [
        {
            "data_source": f"repairgym/{task.source}",
            "agent_name": AGENT_NAME,
            "prompt": [{"role": "user", "content": task.issue}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number, "task_id": task.id, "split": task.split},
        }
        for number, task in enumerate(tasks)
    ]


def write_rows(tasks: Sequence[Task], path: Path) -> int:
    """Write the rows of ``tasks``; returns their number.

    `ConfigError`: there is none, or they are of several splits: verl trains on the training split only.
    """
    splits = sorted({task.split for task in tasks})
    if len(splits) != 1:
        raise ConfigError(
            f"{path} would hold tasks of the splits {splits or 'none'}, expected one; see: repairgym tasks show"
        )
    arrow = parquet_package()
    with written_whole(path) as stream:
        arrow.parquet.write_table(arrow.Table.from_pylist(rows_of(tasks)), stream)
    return len(tasks)


def parquet_package() -> Any:
    """Import pyarrow with its Parquet files; `ConfigError` where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"Parquet files need pyarrow; install it: {install_hint('datasets')}") from None
    return pyarrow


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
        groups = make_trajectory_groups(
            trajectories, lambda group: self._shaping(self._run.tasks[group[0].task_id], group)
        )
        advantages = advantages_of(groups, self._rl.algorithm)
        batch = RolloutBatch(step, trajectories, groups=groups, advantages=advantages)
        record_group_status(self._run.store, self._phase, batch)
        return batch

    def _validation(self, num_updates: int) -> dict[str, float]:
        """Return the result of the weights after ``num_updates``, as the RL loop stores it."""
        return validation_metrics(self._run.store.rows(phase=validation_phase(self._phase, num_updates)))


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
