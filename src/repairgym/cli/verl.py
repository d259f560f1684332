"""`repairgym verl`: configurations and data sets for verl, and whether its versions fit; `repairgym train verl` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.verl_plan import Machine, VerlRecipeOption, load_verl_plan
from repairgym.config.loading import load_config
from repairgym.config.verl import VerlConfig
from repairgym.records import Split

app = typer.Typer(help="Configurations and data sets of RL under verl.", no_args_is_help=True)

Overrides = Annotated[list[str] | None, typer.Argument(help="a.b=value; verl.a=value for the machine.")]


@app.command()
def config(
    source: Annotated[Path, typer.Argument(help="TOML of a recipe, e.g. configs/paper_a/distil_then_grpo.toml.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; one folder per stage in it.")],
    overrides: Overrides = None,
    recipe: VerlRecipeOption = "rl",
    machine: Machine = None,
    model: Annotated[Path, typer.Option(help="Model folder to start from.")] = Path("model"),
    tasks: Annotated[Path, typer.Option(help="Folder of tasks.")] = Path("tasks"),
) -> None:
    """Write what verl's own trainer reads for a recipe of ours; what verl cannot do is refused by name.

    Example: repairgym verl config configs/paper_a/distil_then_grpo.toml verl-a --recipe distil_then_grpo
    """
    from dataclasses import replace

    from repairgym.bridges.verl.training import paths_of, stages_of, write_stage

    plan = load_verl_plan(recipe, source, machine, overrides or [])
    for stage in stages_of(plan.config, plan.comments):
        paths = paths_of(out, stage.phase, "start", tasks)
        paths = replace(paths, folder=out.resolve() / stage.phase, model=model.resolve())
        typer.echo(f"{stage.phase}: {write_stage(stage, plan.machine, paths)}")


@app.command()
def data(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks (repairgym tasks build).")],
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    split: Annotated[Split, typer.Option(help="Which tasks.")] = "train",
) -> None:
    """Write the rows of verl's data set: one per task.

    Example: repairgym verl data tasks train.parquet --split train
    """
    from repairgym.bridges.verl.dataset import write_rows
    from repairgym.tasks.store import TaskStore

    typer.echo(f"{write_rows(TaskStore(tasks).load(split=split), out)} rows: {out}")


@app.command()
def check(overrides: Overrides = None, machine: Machine = None) -> None:
    """Say whether the installed versions are those that a run needs.

    Example: repairgym verl check verl.device=cpu verl.engine=embedded verl.rollout_tensor_parallel=1
    """
    from repairgym.bridges.versions import check_verl_versions

    given = [text.removeprefix("verl.") for text in overrides or []]
    found = check_verl_versions(load_config(VerlConfig, machine, given))
    typer.echo(", ".join(f"{name} {version}" for name, version in found.items()))
