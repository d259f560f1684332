"""Checks of commands before anything is loaded: contexts, memory, stored episodes, selections of tasks.

A dry run checks what is on this machine, as comments of its TOML, and says what it could not check.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import typer

from repairgym.cli.arguments import load_tasks, open_stored
from repairgym.config.commands import (
    EvalCommandConfig,
    ExploitStudyConfig,
    MatrixConfig,
    RolloutCommandConfig,
    ServeTasksConfig,
    StartsConfig,
)
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.config.rounds import AgentQConfig, DaggerConfig, HintsConfig, MaltConfig
from repairgym.config.selection import TaskSelection
from repairgym.inference.model_source import SHIPPED, shipped_base
from repairgym.rollout.jobs import ServerProtocol
from repairgym.sizing.preflight import Room, TrainCommandConfig
from repairgym.tasks.store import TaskStore


def check_contexts(
    model: Path,
    config: TrainCommandConfig,
    run: Path | None = None,
    *,
    is_sampling: bool = True,
    is_dry_run: bool = False,
) -> None:
    """Check that learner and sampler take the episodes of ``config``; print what they need.

    ``run`` has the stored episodes that are learned. `ConfigError`: they do not.
    """
    from repairgym.learning.distributed.fsdp import is_leading, num_processes
    from repairgym.sizing.preflight import preflight, stages_of

    # Of several processes one reads the run; where it raises, torchrun ends the others.
    stored = _stored_tokens(run, config, model) if run and is_leading() else None
    stages = stages_of(config, is_sampling=is_sampling, stored_tokens=stored)
    for line in preflight(model, stages, num_processes(), this_room(is_here=not is_dry_run)):
        if is_leading():
            typer.echo(f"# {line}" if is_dry_run else line)


def check_dry_run(config: TrainCommandConfig, given: dict[str, Any]) -> None:
    """Check what a training call reads, where it is on this machine; ``given`` are the command's own arguments."""
    tasks, run = given.get("tasks"), given["run"]
    has_run = (run / "run.db").is_file()
    if tasks is not None:
        check_selections(config, tasks, is_dry_run=True)
    elif not has_run:
        typer.echo(f"# {run} is not on this machine, so the lengths of its episodes are not checked")
    if model := local_model(given["start"]):
        stored = run if has_run and tasks is None else None
        check_contexts(model, config, stored, is_sampling=tasks is not None, is_dry_run=True)


def local_model(start: Path) -> Path | None:
    """Return the folder of a model argument if it is here; nothing is downloaded."""
    folder = shipped_base() if str(start) == SHIPPED else start
    if (folder / "config.json").is_file():
        return folder
    typer.echo(f"# {start} is not on this machine, so its positions are not checked")
    return None


def this_room(*, is_here: bool = True) -> Room:
    """Return the memory that a process of a training has on this machine."""
    from repairgym.learning.distributed.fsdp import gpu_bytes, num_local_processes
    from repairgym.sizing.workers import cpu_bf16, this_host

    host_bytes, bf16 = this_host().memory_bytes, cpu_bf16() if is_here else ""
    return Room(gpu_bytes(), host_bytes, num_local_processes(), is_here=is_here, cpu_bf16=bf16)


def _stored_tokens(run: Path, config: TrainCommandConfig, model: Path) -> int:
    """Return the tokens of the longest sample that a training makes of a stored run; `TaskError` if it makes none."""
    from repairgym.recipes.step_dpo import stored_pairs
    from repairgym.training.supervised import stored_samples

    with open_stored(run) as store:
        if isinstance(config, StepDpoCommandConfig):
            samples = [sample for pair in stored_pairs(store, config) for sample in (pair.chosen, pair.rejected)]
        elif isinstance(config, RftCommandConfig):
            samples = stored_samples(store, config.phase, config.collect.max_per_task, config.rft, model)
        else:
            assert isinstance(config, SftCommandConfig)
            samples = stored_samples(store, config.phase, config.max_per_task, config.sft, model)
    return max(sample.num_to_compute for sample in samples)


def check_selections(config: TrainCommandConfig, folder: Path, *, is_dry_run: bool = False) -> None:
    """Check every selection of a training, of later stages too, before the first; `ConfigError` for empty ones."""
    from repairgym.tasks.selection import select_tasks
    from repairgym.training.group_sampling import by_source

    if is_dry_run and not _has_tasks(folder):
        return
    tasks = load_tasks(folder).values()
    has_validation = any(task.split == "validation" for task in tasks)
    for name, (selection, shares) in _selections(config, has_validation=has_validation).items():
        selected = select_tasks(tasks, selection)
        by_source(selected.tasks, shares, name)
        if is_dry_run:
            typer.echo(f"# {name}: {selected.summary}")
    if is_dry_run and not has_validation:
        typer.echo(f"# {folder} has no validation split, so a training without another selection validates nothing")


def show_selection(
    config: RolloutCommandConfig
    | EvalCommandConfig
    | MatrixConfig
    | ExploitStudyConfig
    | StartsConfig
    | ServeTasksConfig,
    given: dict[str, Any],
) -> None:
    """Print what a dry run selects of the tasks, where they are on this machine.

    `ConfigError`: nothing is selected, or a server that has to answer is not named.
    """
    from repairgym.tasks.selection import select_tasks

    if isinstance(config, RolloutCommandConfig | EvalCommandConfig) and given["policy"] in get_args(ServerProtocol):
        config.endpoint.require_server()
    if _has_tasks(folder := given["tasks"]):
        typer.echo(f"# select: {select_tasks(load_tasks(folder).values(), config.select).summary}")


def _has_tasks(folder: Path) -> bool:
    if not (has_tasks := TaskStore(folder).has_tasks):
        typer.echo(f"# {folder} is not on this machine, so no task is selected")
    return has_tasks


def _selections(
    config: TrainCommandConfig, *, has_validation: bool
) -> dict[str, tuple[TaskSelection, Collection[str]]]:
    """Return name -> selection, and the sources that have a share of it."""
    chosen: dict[str, tuple[TaskSelection, Collection[str]]] = {}
    if isinstance(config, RftCommandConfig | DistillThenGrpoConfig):
        chosen["collect.select"] = config.collect.select, ()
    if isinstance(config, DaggerConfig | HintsConfig | AgentQConfig | MaltConfig):
        chosen["select"] = config.select, ()
    stages = {"": config.rl} if isinstance(config, RlCommandConfig | DistillThenGrpoConfig) else {}
    if isinstance(config, TwoStageConfig):
        stages = {"stage_1.": config.stage_1.rl, "stage_2.": config.stage_2.rl}
    for prefix, rl in stages.items():
        chosen[f"{prefix}rl.select"] = rl.select, rl.source_shares
        if rl.validation_every and (has_validation or rl.validation.is_narrowed):
            chosen[f"{prefix}rl.validation"] = rl.validation, ()
    return chosen
