"""`repairgym replay`: stored episodes again, in new sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.options import Config, DryRun, Overrides, resolve
from repairgym.config.commands import ReplayCommandConfig
from repairgym.errors import ConfigError, InputError, TaskError

if TYPE_CHECKING:
    from repairgym.records import Task, Trajectory
    from repairgym.rollout.replay import Replay

_NUM_SHOWN = 10


def replay(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    overrides: Overrides = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of its tasks; default: RUN/tasks.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder with the tokenizer of the run.")] = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Replay stored episodes in new sandboxes and compare what the agent read, byte for byte.

    Times, temporary names and addresses are the only things that may differ. rollout.pipeline must be that of the run.

    Example: repairgym replay runs/teacher --tasks tasks num_episodes=100
    """
    from repairgym.rollout.store import RunStore
    from repairgym.tasks.store import TaskStore

    resolved = resolve(ReplayCommandConfig, config, overrides, dry_run)
    known = {task.id: task for task in TaskStore(tasks or run / "tasks").load()}
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        stored = store.trajectories(phase=resolved.phase or None)
        chosen = _choose(stored, known, resolved)
    found = asyncio.run(_replay(chosen, known, model, resolved))
    _print(found)
    if different := [one for one in found if one.difference]:
        raise TaskError(f"{len(different)} of {len(found)} episodes came out differently")


def _choose(stored: Iterable[Trajectory], known: Mapping[str, Task], config: ReplayCommandConfig) -> list[Trajectory]:
    pipeline = config.rollout.pipeline.type
    chosen: list[Trajectory] = []
    for one in stored:
        if not one.turns or one.task_id not in known or len(chosen) == config.num_episodes:
            continue
        if one.pipeline != pipeline:
            raise ConfigError(
                f"{one.id} was made in the pipeline {one.pipeline!r}, got rollout.pipeline.type={pipeline!r}; "
                "give the configuration of the run"
            )
        chosen.append(one)
    if not chosen:
        raise InputError("no stored episode with actions is of these tasks; see --tasks and phase=")
    return chosen


async def _replay(
    chosen: list[Trajectory], known: Mapping[str, Task], model: Path | None, config: ReplayCommandConfig
) -> list[Replay]:
    from repairgym.cli.progress import ProgressDisplay
    from repairgym.inference.loading import load_tokenizer, shipped_base
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.rollout.replay import replay as play
    from repairgym.rollout.runner import Runner
    from repairgym.sandbox.probe import create_backend
    from repairgym.tasks.build.validation import task_layers
    from repairgym.tasks.layers.store import LayerStore

    renderer = ChatRenderer(load_tokenizer(model or shipped_base()))
    store = LayerStore(config=config.rollout.layers)
    backend = create_backend(config.rollout.sandbox)
    found: list[Replay] = []
    try:
        runner = Runner(config.rollout, backend, lambda task: task_layers(task, store), renderer)
        with ProgressDisplay() as progress:
            async for one in play(chosen, known, runner, renderer):
                found.append(one)
                num_different = sum(bool(one.difference) for one in found)
                progress("replay", len(found), len(chosen), f"{num_different} different")
    finally:
        await backend.close()
    return found


def _print(found: list[Replay]) -> None:
    different = [one for one in found if one.difference]
    for one in different[:_NUM_SHOWN]:
        typer.echo(f"{one.trajectory_id}: {one.difference}")
    num_turns, num_equal = sum(one.num_turns for one in found), sum(one.num_equal for one in found)
    num_normalised = sum(one.num_normalised for one in found)
    typer.echo(
        f"{len(found) - len(different)} of {len(found)} episodes are the same; of {num_turns} observations {num_equal} "
        f"are equal byte for byte and {num_normalised} once times, temporary names and addresses are replaced"
    )
