"""`repairgym train`: base, sft, rft, step_dpo, rl, dapo_two_stage, distil_then_grpo, verl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.options import Config, DryRun, Overrides, resolve
from repairgym.cli.verl import Machine, VerlRecipeOption, load_verl_plan
from repairgym.config.commands import RlCommandConfig
from repairgym.config.learning import SftConfig
from repairgym.config.recipes import PretrainingConfig
from repairgym.config.training import (
    DistilThenGrpoConfig,
    RftCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.errors import TaskError
from repairgym.training.run_settings import CallConfig, keep_config

app = typer.Typer(
    help="Train a model: base, sft, rft, rl, whole recipes. All but base and verl also run under torchrun.",
    no_args_is_help=True,
)

Tasks = Annotated[Path, typer.Argument(help="Folder of tasks; the train split is used.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder; an interrupted run is continued.")]
Start = Annotated[Path, typer.Argument(help="Model folder to start from.")]


@app.command()
def base(
    out: Annotated[Path, typer.Argument(help="Model folder to make; its state lies beside it until it is done.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Pre-train a small base from scratch on simulated repairs; a killed call goes on where it was.

    Example: repairgym train base models/base num_tokens=2000000
    """
    from repairgym.cli.display import ProgressDisplay
    from repairgym.cli.running import refuse_several_processes
    from repairgym.pretraining.corpus import held_out_digests
    from repairgym.pretraining.pretraining import pretrain
    from repairgym.tasks.layers.store import LayerStore

    resolved = resolve(PretrainingConfig, config, overrides, dry_run)
    refuse_several_processes()
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
    """Imitate the passed trajectories of a run (paper A's settings by default).

    Example: repairgym train sft runs/teacher models/base phase=rollout sft.choice.type=loss
    """
    resolved = resolve(SftCommandConfig, config, overrides, dry_run)
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

    Example: repairgym train rft runs/own models/sft --tasks tasks collect.num_tasks=100
    """
    resolved = resolve(RftCommandConfig, config, overrides, dry_run)
    if tasks is None:
        _fit_stored(run, start, "rft", resolved.phase, resolved.collect.max_per_task, resolved.rft)
        return
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.recipes.rft import START, rft
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        with open_run(
            run, tasks, start, resolved.rollout, resolved.seed, call=CallConfig("train-rft", resolved)
        ) as opened:
            import_checkpoint(run, start, START)
            typer.echo(f"model: {rft(opened, resolved)}")

    lead_or_follow(recipe, resolved.rft)


def _fit_stored(folder: Path, start: Path, stage: str, phase: str, max_per_task: int, config: SftConfig) -> None:
    """Learn from what a run holds."""
    from repairgym.cli.display import ProgressDisplay
    from repairgym.inference.loading import load_tokenizer
    from repairgym.rollout.store import RunStore
    from repairgym.training.processes import lead_or_follow
    from repairgym.training.supervised import fit_samples, keep_successes, supervised_samples

    def recipe() -> None:
        with RunStore.open(folder / "run.db") as store, ProgressDisplay() as progress:
            # By id: the order in which episodes happened to end must not decide what is learned.
            found = sorted(store.trajectories(phase=phase), key=lambda trajectory: trajectory.id)
            kept = keep_successes(found, max_per_task)
            if not kept:
                raise TaskError(f"{folder} has no passed trajectory in phase {phase!r}; run repairgym rollout first")
            samples = supervised_samples(kept, config, load_tokenizer(start))
            target = folder / "checkpoints" / stage
            fit_samples(start, target, samples, config, store, progress)
            typer.echo(f"model: {target}")

    lead_or_follow(recipe, config)


@app.command("step_dpo")
def step_dpo(
    run: Annotated[Path, typer.Argument(help="Run folder with groups of trajectories, several per task.")],
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Prefer the actions of a run that led to more reward than others after the same history (Agent Q).

    Example: repairgym train step_dpo runs/own models/rft phase=rollout min_gap=0.25
    """
    resolved = resolve(StepDpoCommandConfig, config, overrides, dry_run)
    from repairgym.recipes.step_dpo import step_dpo
    from repairgym.rollout.store import RunStore
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        target = run / "checkpoints" / "step_dpo"
        with RunStore.open(run / "run.db") as store:
            found = step_dpo(store, start, target, resolved)
        typer.echo(f"pairs: {found['preference/num_pairs']:.0f}, loss {found['preference/loss']:.3f}, model: {target}")

    lead_or_follow(recipe, resolved.step_dpo)


@app.command()
def rl(
    tasks: Tasks,
    run: RunFolder,
    start: Start,
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """One stage of RL (paper B's DAPO by default; docs/howto/algorithms.md has the others).

    Example: repairgym train rl tasks runs/rl models/rft rl.num_groups=16 rl.algorithm.group_size=8
    """
    resolved = resolve(RlCommandConfig, config, overrides, dry_run)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.rollout.names import RL
    from repairgym.training.processes import lead_or_follow
    from repairgym.training.rl_stage import run_rl_stage

    def recipe() -> None:
        call, cluster = CallConfig("train-rl", resolved), resolved.cluster
        with open_run(run, tasks, start, resolved.rollout, resolved.seed, resolved.watch, call, cluster) as opened:
            import_checkpoint(run, start, "start")
            run_rl_stage(opened, resolved.rl, "start", RL, resolved.watch.alarms)
        typer.echo(f"model: {run / 'checkpoints' / RL}")

    lead_or_follow(recipe, resolved.rl.algorithm)


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

    Example: repairgym train dapo_two_stage tasks runs/two models/rft --config configs/paper_b/dapo_two_stage.toml
    """
    resolved = resolve(TwoStageConfig, config, overrides, dry_run)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.recipes.dapo_two_stage import dapo_two_stage
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        call = CallConfig("train-dapo_two_stage", resolved)
        import_checkpoint(run, start, "start")
        dapo_two_stage(
            lambda rollout: open_run(run, tasks, start, rollout, resolved.seed, resolved.watch, call), resolved
        )
        typer.echo(f"model: {run / 'checkpoints' / 'stage-2'}")

    lead_or_follow(recipe, resolved.stage_1.rl.algorithm, resolved.stage_2.rl.algorithm)


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

    Example: repairgym train distil_then_grpo tasks runs/a models/base --config configs/paper_a/distil_then_grpo.toml
    """
    resolved = resolve(DistilThenGrpoConfig, config, overrides, dry_run)
    from repairgym.cli.running import check_policy, import_checkpoint, open_run, policy_of
    from repairgym.recipes.distil_then_grpo import distil_then_grpo
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        teacher = policy_of(resolved.teacher, resolved.rollout.temperature, resolved.endpoint)
        check_policy(teacher, start, resolved.rollout)
        import_checkpoint(run, start, "start")
        call = CallConfig("train-distil_then_grpo", resolved)
        distil_then_grpo(
            lambda rollout: open_run(run, tasks, start, rollout, resolved.seed, resolved.watch, call), resolved, teacher
        )
        typer.echo(f"model: {run / 'checkpoints' / 'grpo'}")

    lead_or_follow(recipe, resolved.sft, resolved.rl.algorithm)


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

    Example: repairgym train verl tasks runs/verl models/rft --config rl.toml --machine configs/verl_cpu.toml rl.num_groups=4
    """
    plan = load_verl_plan(recipe, config, machine, overrides or [])
    if dry_run:
        typer.echo(plan.as_toml(), nl=False)
        return
    from repairgym.bridges.verl.training import check_stages, stages_of, train_with_verl
    from repairgym.bridges.versions import check_verl_versions
    from repairgym.cli.running import import_checkpoint, open_run, refuse_several_processes
    from repairgym.recipes.dapo_two_stage import START

    refuse_several_processes()
    stages = stages_of(plan.config)
    check_stages(stages, plan.machine)
    check_verl_versions(plan.machine)
    call, machine_call = plan.calls()
    with open_run(run, tasks, start, stages[0].rollout, plan.config.seed, plan.config.watch, call) as opened:
        keep_config(run, machine_call)
        import_checkpoint(run, start, START)
        stage = train_with_verl(opened, plan.config, plan.machine, tasks, plan.comments)
    typer.echo(f"model: {run / 'checkpoints' / stage}")
