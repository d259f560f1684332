"""RL with verl as the learner (paper A's own stack): our tasks, episodes, verdicts and store, verl's updates.

1. The stage's configuration is translated; what verl cannot do is refused by name.
2. verl's trainer runs as a child process: FSDP2 learns, vLLM or the embedded engine samples, our agent loop runs
   episodes in real sandboxes.
3. Trajectories and metrics come back to ``run.db`` under the names that `mend train rl` uses; so do checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mendwright.bridges.verl.config_files import Places, write_config
from mendwright.bridges.verl.dataset import write_rows
from mendwright.bridges.verl.episode_settings import EpisodeSettings
from mendwright.bridges.verl.episodes import validation_phase
from mendwright.bridges.verl.session import LOG_FILE, Arrival, num_saved_updates, run_verl, saved_model
from mendwright.bridges.verl.spool import Spooled, spooled
from mendwright.bridges.verl.translation import translate
from mendwright.config.commands import RlCommandConfig
from mendwright.config.recipes import RlConfig
from mendwright.config.rollout import RolloutConfig
from mendwright.config.training import DistilThenGrpoConfig, TwoStageConfig
from mendwright.config.verl import VerlConfig, VerlRecipe
from mendwright.config.watch import AlarmConfig
from mendwright.errors import ConfigError
from mendwright.learning.rewards import make_shaping
from mendwright.models.loading import copy_folder
from mendwright.recipes.dapo import PHASE, Collected, rollout_metrics, weight_lag
from mendwright.recipes.dapo_two_stage import STAGE_1, STAGE_2, START, extend, select_tasks_again
from mendwright.recipes.distil_then_grpo import GRPO
from mendwright.recipes.groups import advantages_of, make_trajectory_groups, overlong_metrics
from mendwright.recipes.reinforce import VALIDATION
from mendwright.recipes.run import Run
from mendwright.recipes.watching import sound_alarms
from mendwright.records import Task, Trajectory, VerdictKind
from mendwright.rollout.failures import FailureStreak

METRIC_NAMES = {
    "actor/pg_loss": "train/loss",
    "actor/grad_norm": "optim/grad_norm",
    "actor/lr": "optim/learning_rate",
    "actor/entropy": "policy/entropy",
    "actor/entropy_loss": "policy/entropy",
    "timing_s/gen": "time/rollout_s",
    "timing_s/update_actor": "time/update_s",
}
"""verl's name -> ours, where they say the same; all others are stored as ``verl/...``."""


@dataclass(frozen=True)
class Stage:
    """One stage of RL under verl."""

    phase: str
    rl: RlConfig
    rollout: RolloutConfig
    seed: int = 0
    comments: Mapping[str, str] | None = None
    """Dotted key of ``rl`` and ``rollout`` -> what the TOML says behind it."""


VerlSource = RlCommandConfig | DistilThenGrpoConfig | TwoStageConfig
SOURCES: dict[VerlRecipe, type[VerlSource]] = {
    "rl": RlCommandConfig,
    "distil_then_grpo": DistilThenGrpoConfig,
    "dapo_two_stage": TwoStageConfig,
}
"""Recipe -> the configuration of its command."""


def stages_of(config: VerlSource, comments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of RL of a recipe; paper A's supervised part comes before them and is not verl's.

    Raises:
        ConfigError: episodes are to run on a cluster of our own.
    """
    if isinstance(config, RlCommandConfig) and config.cluster.is_used:
        raise ConfigError(
            f"cluster.address={config.cluster.address!r}: verl places episodes beside its own processes; leave "
            "cluster.* out and name a running Ray cluster as verl.ray_address"
        )
    if isinstance(config, TwoStageConfig):
        return [
            Stage(phase, stage.rl, stage.rollout, config.seed, _below(comments, name))
            for phase, name, stage in ((STAGE_1, "stage_1", config.stage_1), (STAGE_2, "stage_2", config.stage_2))
        ]
    phase = GRPO if isinstance(config, DistilThenGrpoConfig) else PHASE
    return [Stage(phase, config.rl, config.rollout, config.seed, comments)]


def check_stages(stages: Iterable[Stage], machine: VerlConfig) -> None:
    """Refuse what verl cannot do in any stage, before the first begins.

    Raises:
        ConfigError: verl has no counterpart of something; it is named.
    """
    for stage in stages:
        translate(stage.rl, stage.rollout, machine, stage.seed)


def _below(comments: Mapping[str, str] | None, section: str) -> dict[str, str] | None:
    if comments is None:
        return None
    return {k.removeprefix(f"{section}."): told for k, told in comments.items() if k.startswith(f"{section}.")}


def train_with_verl(
    run: Run, config: VerlSource, machine: VerlConfig, tasks: Path, comments: Mapping[str, str] | None = None
) -> str:
    """All stages of ``config`` from checkpoint ``start``; returns the name of the last checkpoint.

    Raises:
        ConfigError, MendError: see `stages_of`, `check_stages`, `reinforce_with_verl`.
    """
    stages = stages_of(config, comments)
    check_stages(stages, machine)
    start = START
    task_ids: list[str] | None = None
    for stage in stages:
        if stage.phase == STAGE_2 and isinstance(config, TwoStageConfig):
            task_ids = select_tasks_again(run, config.select)
            start = extend(run, STAGE_1, config.yarn_factor)
        places = places_of(run.folder, stage.phase, start, tasks)
        reinforce_with_verl(run, stage, machine, places, config.watch.alarms, task_ids)
        start = stage.phase
    return start


def places_of(run: Path, phase: str, start: str, tasks: Path) -> Places:
    """Where a stage's things are in a run folder."""
    run = run.resolve()
    folder = run / "verl" / phase
    return Places(
        folder=folder,
        model=run / "checkpoints" / start,
        tasks=tasks.resolve(),
        train_rows=folder / "train.parquet",
        validation_rows=folder / "validation.parquet",
        checkpoints=run / "checkpoints" / f"{phase}-verl",
    )


def write_stage(stage: Stage, machine: VerlConfig, places: Places) -> Path:
    """The stage's configuration for verl; returns ``verl.yaml``.

    Raises:
        ConfigError: verl has no counterpart of something.
    """
    settings = EpisodeSettings(
        phase=stage.phase,
        seed=stage.seed,
        tasks=str(places.tasks),
        tokenizer=str(places.model),
        spool=str(places.spool),
        overlong=stage.rl.dapo.overlong,
        reward=stage.rl.reward,
        rollout=stage.rollout,
    )
    return write_config(places, stage.rl, settings, machine, stage.comments)


def reinforce_with_verl(
    run: Run,
    stage: Stage,
    machine: VerlConfig,
    places: Places,
    alarms: AlarmConfig,
    task_ids: Iterable[str] | None = None,
) -> None:
    """Train from ``places.model`` to checkpoint ``stage.phase``; a killed run goes on from verl's last checkpoint.

    Raises:
        ConfigError: verl has no counterpart of something, or there are too few tasks for an iteration.
        TaskError: no training task.
        SandboxError: too many episodes in a row are invalid.
        MendError: verl failed.
    """
    if not run.select(VALIDATION):
        stage = replace(stage, rl=stage.rl.model_copy(update={"num_validation_tasks": 0}))
    is_unfinished = num_saved_updates(places) < stage.rl.max_iterations
    if is_unfinished:
        _write_data(run, stage, places, task_ids)
        write_stage(stage, machine, places)
    receiver = Receiver(run, stage, alarms)
    receiver.begin(places)
    if is_unfinished:
        run.progress(stage.phase, 0, 0, f"verl is starting; its own output: {places.folder / LOG_FILE}")
        with run.store.phase(stage.phase):
            for arrival in run_verl(places, machine):
                receiver.take(arrival)
    if is_unfinished or not run.checkpoint(stage.phase).exists():
        copy_folder(saved_model(places), run.checkpoint(stage.phase))


def _write_data(run: Run, stage: Stage, places: Places, task_ids: Iterable[str] | None) -> None:
    wanted = None if task_ids is None else set(task_ids)
    tasks = [task for task in run.training_tasks() if wanted is None or task.id in wanted]
    if len(tasks) < stage.rl.num_groups_sampled:
        raise ConfigError(
            f"rl.num_groups_sampled={stage.rl.num_groups_sampled}, but there are {len(tasks)} training tasks, and verl "
            "draws a task once per pass; lower it or give more tasks"
        )
    write_rows(tasks, places.train_rows)
    # verl wants a file also where nothing is validated.
    write_rows(run.select(VALIDATION, limit=stage.rl.num_validation_tasks) or tasks[:1], places.validation_rows)


class Receiver:
    """Puts what verl finishes into the run store."""

    def __init__(self, run: Run, stage: Stage, alarms: AlarmConfig) -> None:
        self._run = run
        self._stage = stage
        self._alarms = alarms
        self._streak = FailureStreak(stage.rollout.max_failures_in_row)
        self._held: dict[str, Arrival] = {}
        self._num_ended = Counter[str]()
        self._shaping = make_shaping(stage.rl.reward, stage.rollout.pipeline.max_episode_turns)

    def begin(self, places: Places) -> None:
        """Take what a killed run left, then forget the iterations and validations that verl begins again."""
        for file, found in spooled(places.spool):
            self._store(Arrival(trajectory=found, file=file))
        store, phase = self._run.store, self._stage.phase
        first_step = num_saved_updates(places)
        num_dropped = store.drop_steps(phase=phase, first_step=first_step)
        later = {validation_phase(phase, k) for k in range(first_step + 1, self._stage.rl.max_iterations + 1)}
        for name in later & store.num_trajectories().keys():
            store.drop_steps(phase=name, first_step=0)
        if num_dropped:
            text = f"{num_dropped} episodes from iteration {first_step} on are forgotten: verl begins it again"
            store.add_event("begun_again", text, phase=phase)
        if first_step and first_step - 1 not in dict(store.metrics(phase, "rollout/reward_mean")):
            # Killed between the checkpoint and the metrics of its iteration, which verl does not write again.
            self._end_iteration(first_step, {})

    def take(self, arrival: Arrival) -> None:
        """Store one arrival."""
        if arrival.trajectory is not None:
            self._take_trajectory(arrival, arrival.trajectory)
        elif arrival.metrics is not None:
            self._end_iteration(arrival.num_updates, arrival.metrics)

    def _take_trajectory(self, arrival: Arrival, found: Spooled) -> None:
        if found.trajectory.id in self._held:
            return  # still in the spool because it is held back
        self._held[found.trajectory.id] = arrival
        label = f"{found.phase} {found.step}"
        self._num_ended[label] += 1
        self._run.progress(label, self._num_ended[label], 0, "episodes have ended")
        for trajectory in self._streak.admit(found.trajectory):
            self._store(self._held.pop(trajectory.id))

    def _store(self, arrival: Arrival) -> None:
        found = arrival.trajectory
        assert found is not None
        assert arrival.file is not None
        self._run.store.add_trajectory(found.trajectory, phase=found.phase, step=found.step, split=found.split)
        arrival.file.unlink()

    def _end_iteration(self, num_updates: int, theirs: Mapping[str, float]) -> None:
        for trajectory in self._streak.release():
            self._store(self._held.pop(trajectory.id))
        step, phase = num_updates - 1, self._stage.phase
        collected = self._collect(step)
        metrics = {METRIC_NAMES.get(name, f"verl/{name}"): value for name, value in theirs.items()}
        metrics |= rollout_metrics(collected) | overlong_metrics(collected.trajectories, self._stage.rl.dapo)
        metrics["rollout/weight_lag"] = weight_lag(collected.trajectories, step)
        self._run.store.add_metrics(phase, step, metrics)
        self._run.store.add_metrics(phase, num_updates, self._validation(num_updates))
        sound_alarms(self._run.store, phase, self._alarms, self._run.progress)
        detail = f"reward {metrics['rollout/reward_mean']:.2f}"
        self._run.progress(phase, num_updates, self._stage.rl.max_iterations, detail)

    def _collect(self, step: int) -> Collected:
        """The iteration's groups as `DapoLoop` counts them; their status goes to the store."""
        phase = self._stage.phase
        trajectories = list(self._run.store.trajectories(phase=phase, step=step))
        groups = make_trajectory_groups(trajectories, lambda group: self._shaping.shape(self._task(group[0]), group))
        advantages = advantages_of(groups, self._stage.rl.dapo)
        collected = Collected(step, trajectories, groups=groups, advantages=advantages)
        for group, found in zip(groups, collected.advantages, strict=True):
            status = f"dropped_{found.drop_reason}" if found.is_dropped else "kept"
            task_id = group.members[0].task_id
            self._run.store.set_group_status(group.id, phase=phase, step=step, task_id=task_id, status=status)
        return collected

    def _task(self, trajectory: Trajectory) -> Task:
        return self._run.tasks[trajectory.task_id]

    def _validation(self, num_updates: int) -> dict[str, float]:
        """Of the weights after ``num_updates``, as `reinforce` stores it."""
        rows = self._run.store.rows(phase=validation_phase(self._stage.phase, num_updates))
        passed = [row.verdict is VerdictKind.PASSED for row in rows]
        # As in `recipes.evaluate`: an invalid episode counts as failed.
        return {"validation/pass_at_1": sum(passed) / len(passed)} if passed else {}
