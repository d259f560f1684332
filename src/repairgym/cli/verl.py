"""`repairgym verl`: write configurations and data sets for verl, and check its versions. `train verl` runs it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from repairgym.cli.arguments import find_model, open_stored
from repairgym.cli.options import Config, config_files, configured
from repairgym.config.cluster import VerlConfig, VerlRecipe
from repairgym.config.loading import file_or_preset, load_config, to_toml
from repairgym.config.recipes import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    TwoStageConfig,
)
from repairgym.config.selection import DataSetSelection
from repairgym.errors import ConfigError
from repairgym.training.run_settings import CallConfig

VerlRecipeOption = Annotated[
    VerlRecipe, typer.Option("--recipe", help="Recipe that the configuration is for: repairgym train RECIPE.")
]
Machine = Annotated[
    Path | None, typer.Option("--machine", help="TOML file or preset of machines and engine (VerlConfig).")
]
_MACHINE_PREFIX = "verl."
_FREE_OF_MACHINE = (
    "rollout_tensor_parallel", "sequence_parallel", "is_offloaded", "gpu_memory_share", "save_every",
    "num_checkpoints_kept", "ray_address", "num_cpus",
)  # fmt: skip
"""Settings of the machine that a later call may change. The others change sampling, batch size or the number of
processes, which verl's checkpoints depend on."""


@dataclass(frozen=True)
class VerlPlan:
    """Recipe and machine of a training run under verl."""

    recipe: VerlRecipe
    config: RlCommandConfig | DistillThenGrpoConfig | TwoStageConfig
    machine: VerlConfig
    comments: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> its comment in the recipe's TOML."""

    def calls(self) -> tuple[CallConfig, CallConfig]:
        """Return both configurations as a run stores them; each recipe has its own phases and settings in a run."""
        name = f"train-verl-{self.recipe}"
        machine = CallConfig(f"{name}-machine", self.machine, _FREE_OF_MACHINE, "--machine")
        return CallConfig(name, self.config), machine

    def as_toml(self) -> str:
        """Return both configurations, the machine's below ``[verl]``."""
        return f"{to_toml(self.config)}\n[verl]\n{to_toml(self.machine)}"


def load_verl_plan(
    recipe: VerlRecipe, config: Sequence[Path] | None, machine: Path | None, overrides: Sequence[str]
) -> VerlPlan:
    """Load both configurations; overrides that begin with ``verl.`` are the machine's."""
    from repairgym.bridges.verl.config_files import read_comments
    from repairgym.bridges.verl.training import SOURCES

    others, of_machine = _split_overrides(overrides)
    resolved = load_config(SOURCES[recipe], config, others)
    comments = {key: text for file in config or () for key, text in read_comments(file).items()}
    comments |= {text.partition("=")[0].strip(): "given on the command line" for text in others}
    return VerlPlan(recipe, resolved, load_config(VerlConfig, file_or_preset(machine), of_machine), comments)


def _split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of a recipe, and those of the machine without their prefix."""
    of_machine = [text for text in overrides if text.startswith(_MACHINE_PREFIX)]
    others = [text for text in overrides if text not in of_machine]
    return others, [text.removeprefix(_MACHINE_PREFIX) for text in of_machine]


app = typer.Typer(help="Configurations and data sets of verl.", no_args_is_help=True, add_completion=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="a.b=value; verl.a=value for the machine.")]


@app.command()
def config(
    source: Annotated[Path, typer.Argument(help="TOML of a recipe, e.g. paper_a/distill_then_grpo.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, with a folder per stage.")],
    overrides: Overrides = None,
    recipe: VerlRecipeOption = "rl",
    machine: Machine = None,
    model: Annotated[Path, typer.Option(help="Model folder to start from.")] = Path("model"),
    tasks: Annotated[Path, typer.Option(help="Folder of tasks.")] = Path("tasks"),
) -> None:
    """Write a recipe as configuration of verl's own trainer; settings without a counterpart in verl are errors.

    Example: repairgym verl config paper_a/distill_then_grpo verl-a --recipe distill_then_grpo
    """
    from dataclasses import replace

    from repairgym.bridges.verl.config_files import paths_of, sized, write_stage
    from repairgym.bridges.verl.training import stages_of

    plan = load_verl_plan(recipe, [file_or_preset(source) or source], machine, overrides or [])
    for stage in stages_of(plan.config, plan.comments):
        paths = paths_of(out, stage.phase, "start", tasks)
        paths = replace(paths, folder=out.resolve() / stage.phase, model=model.resolve())
        stage = sized(stage, plan.machine)
        typer.echo(f"{stage.phase}: {write_stage(stage, plan.machine, paths)}")


@app.command()
@configured
def data(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks (repairgym tasks build).")],
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    config: DataSetSelection,
) -> None:
    """Write verl's data set, a row per task.

    Example: repairgym verl data tasks train.parquet sources=releases,history
    """
    from repairgym.bridges.verl.training import write_rows
    from repairgym.tasks.selection import select_tasks
    from repairgym.tasks.store import TaskStore

    selected = select_tasks(TaskStore(tasks).load(), config)
    typer.echo(f"{selected.summary}; {write_rows(selected.tasks, out)} rows: {out}")


@app.command()
def sft(
    run: Annotated[Path, typer.Argument(help="Run folder with passed trajectories.")],
    start: Annotated[Path, typer.Argument(help="Model to start from.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    overrides: Overrides = None,
    recipe: Annotated[Literal["sft", "rft"], typer.Option(help="As repairgym train sft or rft.")] = "sft",
    config: Config = None,
    machine: Machine = None,
) -> None:
    """Write samples and configuration for verl's SFT trainer and print the command that runs it.

    Example: repairgym verl sft runs/own models/base verl-rft --recipe rft rft.compute.micro_batch_tokens=131072
    """
    from repairgym.bridges.verl.demands import supervised_demand
    from repairgym.bridges.verl.supervised import write_supervised
    from repairgym.learning.distributed.fsdp import gpu_bytes
    from repairgym.sizing.positions import check_demand, read_positions
    from repairgym.sizing.preflight import dense_shape
    from repairgym.training.supervised import stored_samples

    plain, of_machine = _split_overrides(overrides or [])
    cls: type[SftCommandConfig] | type[RftCommandConfig] = SftCommandConfig if recipe == "sft" else RftCommandConfig
    plan = load_config(cls, config_files(config), plain)
    trained, max_per_task = (
        (plan.sft, plan.max_per_task) if isinstance(plan, SftCommandConfig) else (plan.rft, plan.collect.max_per_task)
    )
    loaded = load_config(VerlConfig, file_or_preset(machine), of_machine)
    if loaded.device == "cpu":
        raise ConfigError("verl.device='cpu': the command of verl's SFT trainer needs GPUs; use repairgym train sft")
    model = find_model(start)
    with open_stored(run) as store:
        samples = stored_samples(store, plan.phase, max_per_task, trained, model)
    demand = supervised_demand(dense_shape(model), trained, max(map(len, samples)), loaded, gpu_bytes())
    typer.echo(check_demand(read_positions(model), demand), err=True)
    command, variables = write_supervised(samples, trained, loaded, model, out)
    num_left_out = len(samples) % trained.batch_size
    typer.echo(f"{len(samples)} samples; verl leaves {num_left_out} out of each pass: it learns whole batches only")
    typer.echo(
        " ".join([*(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()), shlex.join(command)])
    )


@app.command()
def check(overrides: Overrides = None, machine: Machine = None) -> None:
    """Check that the installed versions are those that a run needs.

    Example: repairgym verl check verl.device=cpu verl.engine=embedded verl.rollout_tensor_parallel=1
    """
    from repairgym.bridges.versions import check_verl_versions

    given = [text.removeprefix(_MACHINE_PREFIX) for text in overrides or []]
    versions = check_verl_versions(load_config(VerlConfig, file_or_preset(machine), given))
    typer.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
