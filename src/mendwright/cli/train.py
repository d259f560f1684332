"""`mend train`: base, sft, rft, step_dpo, rl, dapo_two_stage, distil_then_grpo, verl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mendwright.cli.verl_plan import Machine, VerlRecipeOption, load_verl_plan
from mendwright.config.commands import RlCommandConfig
from mendwright.config.learning import SftConfig
from mendwright.config.loading import load_config, to_toml
from mendwright.config.recipes import PretrainingConfig
from mendwright.config.training import (
    DistilThenGrpoConfig,
    RftCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from mendwright.errors import ConfigError, TaskError
from mendwright.records import Record

app = typer.Typer(help="Train a model: base, sft, rft, rl, whole recipes.", no_args_is_help=True)

Tasks = Annotated[Path, typer.Argument(help="Folder of tasks; the train split is used.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder; an interrupted run is continued.")]
Start = Annotated[Path, typer.Argument(help="Model folder to start from.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="a.b=value")]
Config = Annotated[Path | None, typer.Option(help="TOML file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and leave.")]


@app.command()
def base(
    out: Annotated[Path, typer.Argument(help="Model folder to make; its state lies beside it until it is done.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Pre-train a small base from scratch on simulated repairs; a killed call goes on where it was.

    Example: mend train base models/base num_tokens=2000000
    """
    from mendwright.cli.progress import ProgressDisplay
    from mendwright.recipes.held_out import held_out_digests
    from mendwright.recipes.pretraining import pretrain
    from mendwright.tasks.layers import LayerStore

    resolved = load_config(PretrainingConfig, config, overrides or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    with ProgressDisplay() as progress:
        pretrain(resolved, out, progress, excluded=held_out_digests(LayerStore()))
    typer.echo(f"base model: {out}")


@app.command()
def sft(
    run: Annotated[Path, typer.Argument(help="Run folder with trajectories of a teacher.")],
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Imitate the passed trajectories of a run (paper A's settings by default); also under torchrun.

    Example: mend train sft runs/teacher models/base phase=rollout sft.choice.type=loss
    """
    resolved = load_config(SftCommandConfig, config, overrides or [])
    if not _is_shown(resolved, dry_run):
        _fit_stored(run, start, "sft", resolved.phase, resolved.max_per_task, resolved.sft)


@app.command()
def rft(
    run: Annotated[Path, typer.Argument(help="Run folder with the policy's own trajectories, or for them.")],
    start: Start,
    overrides: Overrides = None,
    tasks: Annotated[Path | None, typer.Option(help="Sample on the training tasks of this folder first.")] = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Rejection fine-tuning: the policy's own passed trajectories, format errors masked (paper B, section 4.2).

    Example: mend train rft runs/own models/sft --tasks tasks collect.num_tasks=100
    """
    resolved = load_config(RftCommandConfig, config, overrides or [])
    if _is_shown(resolved, dry_run):
        return
    if tasks is None:
        _fit_stored(run, start, "rft", resolved.phase, resolved.collect.max_per_task, resolved.rft)
        return
    _refuse_several_processes()
    from mendwright.cli.running import import_checkpoint, open_run
    from mendwright.recipes.rft import START, rft

    with open_run(run, tasks, start, resolved.rollout, resolved.seed) as opened:
        import_checkpoint(run, start, START)
        typer.echo(f"model: {rft(opened, resolved)}")


def _fit_stored(folder: Path, start: Path, stage: str, phase: str, max_per_task: int, config: SftConfig) -> None:
    """Learn from what a run holds, alone or as one of torchrun's processes."""
    from mendwright.cli.progress import ProgressDisplay
    from mendwright.learning.parallel import process_group
    from mendwright.models.loading import load_tokenizer
    from mendwright.recipes.progress import no_progress
    from mendwright.recipes.supervised import fit_samples, keep_successes, supervised_samples
    from mendwright.rollout.store import RunStore

    with RunStore.open(folder / "run.db") as store, process_group() as world, ProgressDisplay() as progress:
        # By id: the order in which episodes happened to end must not decide what is learned.
        found = sorted(store.trajectories(phase=phase), key=lambda trajectory: trajectory.id)
        kept = keep_successes(found, max_per_task)
        if not kept:
            raise TaskError(f"{folder} has no passed trajectory in phase {phase!r}; run mend rollout first")
        samples = supervised_samples(kept, config, load_tokenizer(start))
        target = folder / "checkpoints" / stage
        fit_samples(start, target, samples, config, store, progress if world.is_leader else no_progress)
        if world.is_leader:
            typer.echo(f"model: {target}")


@app.command("step_dpo")
def step_dpo(
    run: Annotated[Path, typer.Argument(help="Run folder with groups of trajectories, several per task.")],
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Prefer the actions of a run that led to more reward than others after the same history (Agent Q).

    Example: mend train step_dpo runs/own models/rft phase=rollout min_gap=0.25
    """
    resolved = load_config(StepDpoCommandConfig, config, overrides or [])
    if _is_shown(resolved, dry_run):
        return
    _refuse_several_processes()
    from mendwright.recipes.step_dpo import step_dpo
    from mendwright.rollout.store import RunStore

    with RunStore.open(run / "run.db") as store:
        target = run / "checkpoints" / "step_dpo"
        metrics = step_dpo(store, start, target, resolved)
    typer.echo(f"pairs: {metrics['preference/num_pairs']:.0f}, loss {metrics['preference/loss']:.3f}, model: {target}")


@app.command()
def rl(
    tasks: Tasks,
    run: RunFolder,
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """One stage of RL (paper B's DAPO by default; docs/howto/algorithms.md has the others); also under torchrun.

    Example: mend train rl tasks runs/rl models/rft rl.num_groups=16 rl.dapo.group_size=8
    """
    resolved = load_config(RlCommandConfig, config, overrides or [])
    if _is_shown(resolved, dry_run):
        return
    from mendwright.cli.running import import_checkpoint, open_run
    from mendwright.learning.parallel import process_group
    from mendwright.recipes.dapo import PHASE, state_name
    from mendwright.recipes.reinforce import reinforce
    from mendwright.recipes.updates import Updates

    with process_group() as world:
        if not world.is_leader:
            Updates(start, run / "checkpoints" / state_name(PHASE), resolved.rl.dapo).follow()
            return
        with open_run(run, tasks, start, resolved.rollout, resolved.seed, resolved.watch) as opened:
            import_checkpoint(run, start, "start")
            reinforce(opened, resolved.rl, "start", PHASE, resolved.watch.alarms)
    typer.echo(f"model: {run / 'checkpoints' / PHASE}")


@app.command("dapo_two_stage")
def dapo_two_stage(
    tasks: Tasks,
    run: RunFolder,
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """DAPO, then DAPO on the tasks worth more work in a longer context (paper B, section 4.3).

    Example: mend train dapo_two_stage tasks runs/two models/rft --config configs/paper_b/dapo_two_stage.toml
    """
    resolved = load_config(TwoStageConfig, config, overrides or [])
    if _is_shown(resolved, dry_run):
        return
    _refuse_several_processes()
    from mendwright.cli.running import import_checkpoint, open_run
    from mendwright.recipes.dapo_two_stage import dapo_two_stage

    import_checkpoint(run, start, "start")
    dapo_two_stage(lambda rollout: open_run(run, tasks, start, rollout, resolved.seed, resolved.watch), resolved)
    typer.echo(f"model: {run / 'checkpoints' / 'stage-2'}")


@app.command("distil_then_grpo")
def distil_then_grpo(
    tasks: Tasks,
    run: RunFolder,
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Imitate a teacher, then GRPO (paper A).

    Example: mend train distil_then_grpo tasks runs/a models/base --config configs/paper_a/distil_then_grpo.toml
    """
    resolved = load_config(DistilThenGrpoConfig, config, overrides or [])
    if _is_shown(resolved, dry_run):
        return
    _refuse_several_processes()
    from mendwright.cli.running import import_checkpoint, open_run, policy_of
    from mendwright.recipes.distil_then_grpo import distil_then_grpo

    teacher = policy_of(resolved.teacher, resolved.rollout.temperature, resolved.endpoint)
    import_checkpoint(run, start, "start")
    distil_then_grpo(
        lambda rollout: open_run(run, tasks, start, rollout, resolved.seed, resolved.watch), resolved, teacher
    )
    typer.echo(f"model: {run / 'checkpoints' / 'grpo'}")


@app.command()
def verl(
    tasks: Tasks,
    run: RunFolder,
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    recipe: VerlRecipeOption = "rl",
    machine: Machine = None,
    dry_run: DryRun = False,
) -> None:
    """RL with verl as the learner; the recipe's own TOML says what is learned (docs/howto/verl.md).

    Example: mend train verl tasks runs/verl models/rft --config rl.toml --machine configs/verl_cpu.toml rl.num_groups=4
    """
    plan = load_verl_plan(recipe, config, machine, overrides or [])
    if dry_run:
        typer.echo(plan.as_toml(), nl=False)
        return
    _refuse_several_processes()
    from mendwright.bridges.verl.versions import check_versions
    from mendwright.cli.running import import_checkpoint, open_run
    from mendwright.recipes.dapo_two_stage import START
    from mendwright.recipes.verl import stages_of, train_with_verl

    check_versions(plan.machine)
    rollout = stages_of(plan.config)[0].rollout
    with open_run(run, tasks, start, rollout, plan.config.seed, plan.config.watch) as opened:
        import_checkpoint(run, start, START)
        stage = train_with_verl(opened, plan.config, plan.machine, tasks, plan.comments)
    typer.echo(f"model: {run / 'checkpoints' / stage}")


def _is_shown(config: Record, is_wanted: bool) -> bool:
    """Print ``config`` when only that is wanted; says whether it was."""
    if is_wanted:
        typer.echo(to_toml(config), nl=False)
    return is_wanted


def _refuse_several_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "this command is for one process; torchrun is for mend train sft, rl, and rft without --tasks"
        )
