"""RL with verl as the learner (paper A's own stack): our tasks, episodes, verdicts and store, verl's updates.

1. The stage's configuration is translated; what verl cannot do is refused by name.
2. verl's trainer runs as a child process: FSDP2 learns, vLLM or the embedded engine samples, our agent loop runs
   episodes in real sandboxes.
3. Trajectories and metrics come back to ``run.db`` under the names that `repairgym train rl` uses; so do checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from repairgym.bridges.verl.config_files import VerlPaths, write_config
from repairgym.bridges.verl.dataset import write_rows
from repairgym.bridges.verl.episode_settings import EpisodeSettings
from repairgym.bridges.verl.episodes import VALIDATION
from repairgym.bridges.verl.receiver import Receiver
from repairgym.bridges.verl.session import LOG_FILE, num_saved_updates, run_verl, saved_model
from repairgym.bridges.verl.stages import Stage, VerlSource, check_stages, stages_of
from repairgym.config.training import TwoStageConfig
from repairgym.config.verl import VerlConfig
from repairgym.config.watch import AlarmConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import copy_folder
from repairgym.recipes.dapo_two_stage import STAGE_1, STAGE_2, START, extend, select_tasks_again
from repairgym.training.run import Run


def train_with_verl(
    run: Run, config: VerlSource, machine: VerlConfig, tasks: Path, comments: Mapping[str, str] | None = None
) -> str:
    """All stages of ``config`` from checkpoint ``start``; returns the name of the last checkpoint.

    Raises:
        ConfigError, RepairGymError: see `stages_of`, `check_stages`, `reinforce_with_verl`.
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


def places_of(run: Path, phase: str, start: str, tasks: Path) -> VerlPaths:
    """Where a stage's things are in a run folder."""
    run = run.resolve()
    folder = run / "verl" / phase
    return VerlPaths(
        folder=folder,
        model=run / "checkpoints" / start,
        tasks=tasks.resolve(),
        train_rows=folder / "train.parquet",
        validation_rows=folder / "validation.parquet",
        checkpoints=run / "checkpoints" / f"{phase}-verl",
    )


def write_stage(stage: Stage, machine: VerlConfig, places: VerlPaths) -> Path:
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
        overlong=stage.rl.algorithm.overlong,
        reward=stage.rl.reward,
        rollout=stage.rollout,
    )
    return write_config(places, stage.rl, settings, machine, stage.comments)


def reinforce_with_verl(
    run: Run,
    stage: Stage,
    machine: VerlConfig,
    places: VerlPaths,
    alarms: AlarmConfig,
    task_ids: Iterable[str] | None = None,
) -> None:
    """Train from ``places.model`` to checkpoint ``stage.phase``; a killed run goes on from verl's last checkpoint.

    Raises:
        ConfigError: verl has no counterpart of something, or there are too few tasks for an iteration.
        TaskError: no training task.
        SandboxError: too many episodes in a row are invalid.
        RepairGymError: verl failed.
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


def _write_data(run: Run, stage: Stage, places: VerlPaths, task_ids: Iterable[str] | None) -> None:
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
