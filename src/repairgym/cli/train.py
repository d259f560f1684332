"""`repairgym train`: the small base and its corpora, supervised and preference training, rl, whole recipes, verl.

A command checks its arguments and configuration before it imports torch, then runs its recipe, in several processes
under torchrun.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from repairgym.cli.arguments import check_new_run, check_run, check_tasks, find_model, find_policy
from repairgym.cli.options import (
    Config,
    DryRun,
    NewRun,
    Overrides,
    Preset,
    RunFolder,
    Start,
    Tasks,
    config_files,
    configured,
)
from repairgym.cli.preflights import check_contexts, check_dry_run, check_selections, local_model, this_room
from repairgym.cli.verl import Machine, VerlRecipeOption, load_verl_plan
from repairgym.config import recipes, rounds
from repairgym.config.algorithms import PRESETS
from repairgym.config.commands import ChangesConfig
from repairgym.config.learning import AlgorithmConfig, SftConfig, StepDpoConfig
from repairgym.errors import ConfigError
from repairgym.sizing.preflight import TrainCommandConfig
from repairgym.tasks.store import TaskStore
from repairgym.training.run_settings import CallConfig, keep_config

if TYPE_CHECKING:
    from repairgym.training.run import Run

START = "start"
"""Name of the checkpoint that a recipe starts from."""


class _TrainGroup(TyperGroup):
    """Suggests the right command for the name of an algorithm."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in PRESETS and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean: repairgym train rl ... rl.algorithm={args[0]}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_TrainGroup,
    help="Train a model: base, sft, rft, rl, whole recipes. All but base and verl also run under torchrun.",
    no_args_is_help=True,
    add_completion=False,
)


def _train(run: Path, recipe: Callable[[], str], *trained: SftConfig | AlgorithmConfig | StepDpoConfig) -> None:
    """Run ``recipe``, which returns the name of its last checkpoint; under torchrun the other processes follow it."""
    from repairgym.training.processes import lead_or_follow

    lead_or_follow(lambda: typer.echo(f"model: {run / 'checkpoints' / recipe()}"), *trained)


_configured = partial(configured, check_dry=check_dry_run)


@app.command()
@configured
def base(
    out: Annotated[Path, typer.Argument(help="Model folder to make; the training state is next to it until the end.")],
    config: recipes.PretrainingConfig,
) -> None:
    """Pre-train a small base from scratch on simulated repairs; an interrupted call resumes.

    Example: repairgym train base models/base num_tokens=2000000
    """
    from repairgym.cli.display import ProgressDisplay
    from repairgym.cli.running import require_one_process
    from repairgym.pretraining.held_out import held_out_digests
    from repairgym.pretraining.pretraining import pretrain
    from repairgym.tasks.layers.store import LayerStore

    require_one_process()
    with ProgressDisplay() as progress:
        excluded = frozenset() if config.functions else held_out_digests(LayerStore())
        pretrain(config, out, progress, excluded=excluded)
    typer.echo(f"base model: {out}")


@app.command()
@configured
def functions(
    out: Annotated[Path, typer.Argument(help="File to make: gzipped JSON lines.")],
    config: recipes.PretrainingConfig,
) -> None:
    """Write the functions of the corpus to a file, for `train base` on a machine without their distributions.

    Example: repairgym train functions functions.jsonl.gz
    """
    from repairgym.pretraining.batches import installed_functions
    from repairgym.pretraining.corpus import save_functions
    from repairgym.pretraining.held_out import held_out_digests
    from repairgym.tasks.layers.store import LayerStore

    corpus = installed_functions(config, held_out_digests(LayerStore()))
    save_functions(corpus, out)
    typer.echo(f"{len(corpus):,} functions: {out}")


@app.command()
@configured
def changes(
    out: Annotated[Path, typer.Argument(help="File of JSON lines to make; its manifest is put next to it.")],
    config: ChangesConfig,
) -> None:
    """Collect small changes of functions between releases, to pre-train on; an interrupted call resumes.

    Example: repairgym train changes changes.jsonl --preset changes num_releases=4
    """
    from repairgym.cli.display import ProgressDisplay
    from repairgym.pretraining.change_corpus import check_packages, collect_changes
    from repairgym.pretraining.held_out import held_out_digests
    from repairgym.tasks.layers.store import LayerStore

    check_packages(config)
    with ProgressDisplay() as progress:
        progress("changes", 0, 0, "reading the held-out packages")
        counts = collect_changes(config, out, held_out_digests(LayerStore()), progress)
    for name, reason in counts.failed.items():
        typer.echo(f"left out: {name}: {reason}")
    typer.echo(f"{counts.num_changes} changes of {counts.num_packages} packages: {out}")


@app.command()
@_configured
def sft(run: RunFolder, start: Start, config: recipes.SftCommandConfig) -> None:
    """Imitate the passed trajectories of a run (paper A's settings by default).

    Example: repairgym train sft runs/teacher models/base phase=rollout sft.choice.type=loss
    """
    check_run(run)
    model = find_model(start)
    check_contexts(model, config, run)
    _fit_stored(run, model, "sft", config.phase, config.max_per_task, config.sft)


@app.command()
@_configured
def rft(
    run: Annotated[Path, typer.Argument(help="Run folder with the policy's trajectories; with --tasks a new one.")],
    start: Start,
    config: recipes.RftCommandConfig,
    tasks: Annotated[Path | None, typer.Option(help="Sample on the training tasks of this folder first.")] = None,
) -> None:
    """Rejection fine-tuning: the policy's own passed trajectories, format errors masked (paper B, section 4.2).

    Example: repairgym train rft runs/own models/sft --tasks tasks collect.select.num_tasks=100
    """
    if tasks is None:
        if config.sampler != "embedded":
            raise ConfigError(f"sampler={config.sampler!r} samples nothing without --tasks; name a folder of tasks")
        check_run(run)
    folder, model = tasks and check_tasks(tasks), find_model(start)
    check_contexts(model, config, None if folder else run, is_sampling=folder is not None)
    if folder is None:
        _fit_stored(run, model, "rft", config.phase, config.collect.max_per_task, config.rft)
        return
    check_selections(config, folder)
    served = None
    if config.sampler != "embedded":
        served = find_policy(config.sampler, config.rollout.temperature, config.endpoint)
    from repairgym.cli.running import check_policy, import_checkpoint, open_run
    from repairgym.recipes.rft import rft

    def recipe() -> str:
        if served:
            check_policy(served, model, config.rollout)
        call = CallConfig("train-rft", config)
        with open_run(run, folder, model, config.rollout, config.seed, call=call) as opened:
            import_checkpoint(run, model, START)
            return rft(opened, config, served).name

    _train(run, recipe, config.rft)


def _fit_stored(run: Path, model: Path, stage: str, phase: str, max_per_task: int, config: SftConfig) -> None:
    """Train on the passed trajectories of a stored run."""
    from repairgym.cli.display import ProgressDisplay
    from repairgym.rollout.calls import locked
    from repairgym.rollout.store import RunStore
    from repairgym.training.supervised import fit_samples, stored_samples

    def recipe() -> str:
        with locked(run), RunStore.open(run / "run.db") as store, ProgressDisplay() as progress:
            samples = stored_samples(store, phase, max_per_task, config, model)
            fit_samples(model, run / "checkpoints" / stage, samples, config, store, progress)
        return stage

    _train(run, recipe, config)


@app.command("step_dpo")
@_configured
def step_dpo(run: RunFolder, start: Start, config: recipes.StepDpoCommandConfig) -> None:
    """Prefer the actions of a run that led to more reward than others after the same history (Agent Q).

    Example: repairgym train step_dpo runs/own models/rft phase=rollout min_gap=0.25
    """
    check_run(run)
    model = find_model(start)
    check_contexts(model, config, run)
    from repairgym.recipes.step_dpo import step_dpo
    from repairgym.rollout.calls import locked
    from repairgym.rollout.store import RunStore

    def recipe() -> str:
        with locked(run), RunStore.open(run / "run.db") as store:
            metrics = step_dpo(store, model, run / "checkpoints" / "step_dpo", config)
        typer.echo(f"pairs: {metrics['preference/num_pairs']:.0f}, loss {metrics['preference/loss']:.3f}")
        return "step_dpo"

    _train(run, recipe, config.step_dpo)


def _check_paths(tasks: Path, run: Path, start: Path) -> Path:
    """Check the arguments of a recipe that samples; return the folder of the model."""
    check_tasks(tasks), check_new_run(run)
    return find_model(start)


def _check_recipe(tasks: Path, run: Path, start: Path, config: TrainCommandConfig) -> Path:
    """Check arguments, contexts and selections of a recipe that samples; return the folder of the model."""
    model = _check_paths(tasks, run, start)
    check_contexts(model, config)
    check_selections(config, tasks)
    return model


def _train_in_rounds(
    name: str,
    recipe: "Callable[[Run], Path]",
    tasks: Path,
    run: Path,
    model: Path,
    config: rounds.DaggerConfig | rounds.HintsConfig | rounds.AgentQConfig | rounds.MaltConfig,
    *settings: SftConfig | StepDpoConfig,
) -> None:
    """Run a recipe that samples and updates in turn, in a run folder that begins with ``model``."""
    from repairgym.cli.running import import_checkpoint, open_run

    def in_run() -> str:
        call = CallConfig(f"train-{name}", config)
        with open_run(run, tasks, model, config.rollout, config.seed, call=call) as opened:
            import_checkpoint(run, model, START)
            return recipe(opened).name

    _train(run, in_run, *settings)


@app.command()
@_configured
def dagger(tasks: Tasks, run: NewRun, start: Start, config: rounds.DaggerConfig) -> None:
    """Imitate a scripted expert in the states that the policy itself gets into (turn-level DAgger).

    Example: repairgym train dagger tasks runs/dagger models/base select.num_tasks=64 num_rounds=3
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.recipes.dagger import dagger

    _train_in_rounds("dagger", lambda opened: dagger(opened, config), tasks, run, model, config, config.sft)


@app.command()
@_configured
def hints(tasks: Tasks, run: NewRun, start: Start, config: rounds.HintsConfig) -> None:
    """Continue behind hints at wasted turns, and imitate what then passed without the hints (after CoRT).

    Example: repairgym train hints tasks runs/hints models/rft select.num_tasks=64 num_forks=2
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.recipes.hints import hints

    _train_in_rounds("hints", lambda opened: hints(opened, config), tasks, run, model, config, config.sft)


@app.command("agent_q")
@_configured
def agent_q(tasks: Tasks, run: NewRun, start: Start, config: rounds.AgentQConfig) -> None:
    """Search over turns, prefer the better action of each node, repeat (Agent Q, Algorithm 1).

    Example: repairgym train agent_q tasks runs/q models/rft num_leaves=16 num_rounds=3
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.recipes.agent_q import agent_q

    _train_in_rounds("agent_q", lambda opened: agent_q(opened, config), tasks, run, model, config, config.step_dpo)


@app.command()
@_configured
def malt(tasks: Tasks, run: NewRun, start: Start, config: rounds.MaltConfig) -> None:
    """Train a patcher, a reviewer and a refiner on trees of their turns; the file that it makes is a policy (MALT).

    Example: repairgym train malt tasks runs/malt models/rft select.num_tasks=64 num_patches=3
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.recipes.malt import malt

    settings = (config.sft, config.step_dpo)
    _train_in_rounds("malt", lambda opened: malt(opened, config), tasks, run, model, config, *settings)


@app.command()
@_configured
def rl(tasks: Tasks, run: NewRun, start: Start, config: recipes.RlCommandConfig) -> None:
    """One stage of RL (paper B's DAPO by default; rl.algorithm=grpo, gspo, ...: docs/howto/algorithms.md).

    Example: repairgym train rl tasks runs/rl models/rft rl.num_groups=16 rl.algorithm.group_size=8
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.rollout.names import RL
    from repairgym.training.rl_loop import run_rl_stage

    def recipe() -> str:
        call = CallConfig("train-rl", config)
        with open_run(run, tasks, model, config.rollout, config.seed, config.watch, call, config.cluster) as opened:
            import_checkpoint(run, model, START)
            run_rl_stage(opened, config.rl, START, RL, config.watch.alarms)
        return RL

    _train(run, recipe, config.rl.algorithm)


@app.command("self_play")
@_configured
def self_play(tasks: Tasks, run: NewRun, start: Start, config: rounds.SelfPlayConfig) -> None:
    """RL on tasks that evolve with the policy: its failures, and bugs that it injects, become tasks (EigenData, SSR).

    Example: repairgym train self_play tasks runs/play models/rft --preset demo_rl rl.max_iterations=20

    Example: repairgym train self_play tasks runs/play models/rft num_rounds=3 num_injected_tasks=24
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.recipes.self_play import self_play

    def recipe() -> str:
        call = CallConfig("train-self_play", config)
        with open_run(run, tasks, model, config.rollout, config.seed, config.watch, call, config.cluster) as opened:
            import_checkpoint(run, model, START)
            return self_play(opened, TaskStore(tasks), config).name

    _train(run, recipe, config.rl.algorithm)


@app.command("dapo_two_stage")
@_configured
def dapo_two_stage(tasks: Tasks, run: NewRun, start: Start, config: recipes.TwoStageConfig) -> None:
    """DAPO, then DAPO on the tasks worth more work in a longer context (paper B, section 4.3).

    Example: repairgym train dapo_two_stage tasks runs/two models/rft --preset paper_b/two_stage
    """
    model = _check_recipe(tasks, run, start, config)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.recipes.dapo_two_stage import dapo_two_stage

    def recipe() -> str:
        call = CallConfig("train-dapo_two_stage", config)
        import_checkpoint(run, model, START)
        dapo_two_stage(lambda rollout: open_run(run, tasks, model, rollout, config.seed, config.watch, call), config)
        return "stage-2"

    _train(run, recipe, config.stage_1.rl.algorithm, config.stage_2.rl.algorithm)


@app.command("distill_then_grpo")
@_configured
def distill_then_grpo(tasks: Tasks, run: NewRun, start: Start, config: recipes.DistillThenGrpoConfig) -> None:
    """Imitate a teacher, then GRPO (paper A).

    Example: repairgym train distill_then_grpo tasks runs/a models/base --preset paper_a/distill_then_grpo
    """
    model = _check_recipe(tasks, run, start, config)
    collect = config.collect_rollout or config.rollout
    teacher = find_policy(config.teacher, collect.temperature, config.endpoint)
    from repairgym.cli.running import check_policy, import_checkpoint, open_run
    from repairgym.recipes.distill_then_grpo import distill_then_grpo

    def recipe() -> str:
        check_policy(teacher, model, collect)
        import_checkpoint(run, model, START)
        call = CallConfig("train-distill_then_grpo", config)
        distill_then_grpo(
            lambda rollout: open_run(run, tasks, model, rollout, config.seed, config.watch, call), config, teacher
        )
        return "grpo"

    _train(run, recipe, config.sft, config.rl.algorithm)


@app.command()
def verl(
    tasks: Tasks,
    run: NewRun,
    start: Start,
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    recipe: VerlRecipeOption = "rl",
    machine: Machine = None,
    dry_run: DryRun = False,
) -> None:
    """RL with verl as the learner; the configuration is that of the recipe (docs/howto/verl.md).

    Example: repairgym train verl tasks runs/verl models/rft --config rl.toml --machine verl_cpu rl.num_groups=4
    """
    plan = load_verl_plan(recipe, config_files(config, preset), machine, overrides or [])
    from repairgym.bridges.verl import training

    if dry_run:
        typer.echo(plan.as_toml(), nl=False)
    stages = training.stages_of(plan.config)
    training.check_stages(stages, plan.machine)
    if dry_run:
        check_selections(plan.config, tasks, is_dry_run=True)
        folder, room = local_model(start), this_room(is_here=False)
        for line in training.check_contexts(folder, plan.config, plan.machine, room) if folder else ():
            typer.echo(f"# {line}")
        return
    from repairgym.bridges.versions import check_verl_versions

    check_verl_versions(plan.machine)
    model = _check_paths(tasks, run, start)
    for line in training.check_contexts(model, plan.config, plan.machine, this_room()):
        typer.echo(line)
    check_selections(plan.config, tasks)
    from repairgym.cli.running import import_checkpoint, open_run, require_one_process

    require_one_process()
    call, machine_call = plan.calls()
    with open_run(run, tasks, model, stages[0].rollout, plan.config.seed, plan.config.watch, call) as opened:
        keep_config(run, machine_call)
        import_checkpoint(run, model, START)
        stage = training.train_with_verl(opened, plan.config, plan.machine, tasks, plan.comments)
    typer.echo(f"model: {run / 'checkpoints' / stage}")
