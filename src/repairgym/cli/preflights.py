"""Checks of training commands before anything is loaded: contexts, memory, stored episodes, selections of tasks.

A dry run checks what is on this machine, as comments of its TOML, and says what it could not check.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from repairgym.cli.arguments import load_tasks, open_stored
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    RlConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.config.selection import TaskSelection
from repairgym.inference.model_source import SHIPPED, shipped_base
from repairgym.records import Task
from repairgym.sizing.preflight import Room, TrainCommandConfig
from repairgym.tasks.store import TaskStore

_MARK = "# "


def check_contexts(model: Path, config: TrainCommandConfig, run: Path | None = None) -> None:
    """Check that learner and sampler take the episodes of ``config``; print what they need.

    ``run`` has the stored episodes of a command that learns from such. `ConfigError`: they do not.
    """
    _print_contexts(model, config, run, this_room(), "", is_sampling=run is None)


def check_dry_run(config: TrainCommandConfig, given: dict[str, Any]) -> None:
    """Check what a training call reads, where it is on this machine; ``given`` are the command's own arguments."""
    tasks, run = given.get("tasks"), None
    if tasks is not None:
        check_dry_selections(config, tasks)
    elif (given["run"] / "run.db").is_file():
        run = given["run"]
    else:
        typer.echo(f"{_MARK}{given['run']} is not on this machine, so the lengths of its episodes are not checked")
    if model := local_model(given["start"]):
        _print_contexts(model, config, run, this_room(is_here=False), _MARK, is_sampling=tasks is not None)


def local_model(start: Path) -> Path | None:
    """Return the folder of a model argument if it is here; nothing is downloaded."""
    folder = shipped_base() if str(start) == SHIPPED else start
    if (folder / "config.json").is_file():
        return folder
    typer.echo(f"{_MARK}{start} is not on this machine, so its positions are not checked")
    return None


def this_room(*, is_here: bool = True) -> Room:
    """Return the memory that a process of a training has on this machine."""
    from repairgym.learning.distributed.fsdp import gpu_bytes, num_local_processes
    from repairgym.sizing.workers import this_host

    return Room(gpu_bytes(), this_host().memory_bytes, num_local_processes(), is_here=is_here)


def _print_contexts(
    model: Path, config: TrainCommandConfig, run: Path | None, room: Room, mark: str, *, is_sampling: bool
) -> None:
    from repairgym.learning.distributed.fsdp import is_leading, num_processes
    from repairgym.sizing.preflight import preflight, stages_of

    # Of several processes one reads the run; where it raises, torchrun ends the others.
    stored = stored_tokens(run, config, model) if run and is_leading() else None
    stages = stages_of(config, is_sampling=is_sampling, stored_tokens=stored)
    for line in preflight(model, stages, num_processes(), room):
        if is_leading():
            typer.echo(f"{mark}{line}")


def stored_tokens(run: Path, config: TrainCommandConfig, model: Path) -> int:
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


def check_dry_selections(config: TrainCommandConfig, folder: Path) -> None:
    """Print what a training selects from ``folder``, or that it is not here; `ConfigError` where it selects nothing."""
    if TaskStore(folder).has_tasks:
        check_selections(config, folder, lambda line: typer.echo(f"{_MARK}{line}"))
    else:
        typer.echo(f"{_MARK}{folder} is not on this machine, so no task is selected")


def check_selections(
    config: TrainCommandConfig, folder: Path, say: Callable[[str], object] = lambda line: None
) -> None:
    """Check every selection of a training, of later stages too, before the first; `ConfigError` for empty ones."""
    from repairgym.tasks.selection import select_tasks
    from repairgym.training.group_sampling import by_source

    tasks = list(load_tasks(folder).values())
    for name, selection, rl in _selections(config, tasks):
        selected = select_tasks(tasks, selection)
        say(f"{name}: {selected.summary}")
        if rl:
            by_source(selected.tasks, rl.source_shares, name)


def _selections(
    config: TrainCommandConfig, tasks: Iterable[Task]
) -> Iterator[tuple[str, TaskSelection, RlConfig | None]]:
    """Yield name and selection, and for RL's training tasks its configuration."""
    if isinstance(config, RftCommandConfig | DistillThenGrpoConfig):
        yield "collect.select", config.collect.select, None
    stages: dict[str, RlConfig] = {}
    if isinstance(config, TwoStageConfig):
        stages = {"stage_1.": config.stage_1.rl, "stage_2.": config.stage_2.rl}
    elif isinstance(config, RlCommandConfig | DistillThenGrpoConfig):
        stages = {"": config.rl}
    has_validation = any(task.split == "validation" for task in tasks)
    for prefix, rl in stages.items():
        yield f"{prefix}rl.select", rl.select, rl
        if rl.validation_every and (has_validation or rl.validation.is_narrowed):
            yield f"{prefix}rl.validation", rl.validation, None
