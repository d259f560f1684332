"""`repairgym train`: base, sft, rft, step_dpo, rl, dapo_two_stage, distill_then_grpo, verl.

A recipe is a function of its configuration and paths; `_recipe` makes a command of it. Arguments and configuration are
checked before a recipe imports torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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
    resolve,
)
from repairgym.cli.verl import Machine, VerlRecipeOption, load_verl_plan
from repairgym.config.algorithms import PRESETS
from repairgym.config.commands import RlCommandConfig
from repairgym.config.learning import SftConfig
from repairgym.config.recipes import PretrainingConfig
from repairgym.config.training import (
    DistillThenGrpoConfig,
    RftCommandConfig,
    SftCommandConfig,
    StepDpoCommandConfig,
    TwoStageConfig,
)
from repairgym.errors import TaskError
from repairgym.records import Record
from repairgym.training.run_settings import CallConfig, keep_config

Recipe = Callable[[Any, Path, Path, Path], None]
"""Called with the configuration, the tasks, the run folder and the model; ends with a line about the result."""


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


def _recipe(name: str, cls: type[Record], *, needs_tasks: bool = True) -> Callable[[Recipe], Recipe]:
    """Make the command ``name`` with the configuration ``cls`` of a recipe; without tasks it reads a stored run."""

    def register(recipe: Recipe) -> Recipe:
        def on_tasks(
            tasks: Tasks,
            run: NewRun,
            start: Start,
            overrides: Overrides = None,
            preset: Preset = "",
            config: Config = None,
            dry_run: DryRun = False,
        ) -> None:
            resolved = resolve(cls, overrides, config, preset, dry_run)
            recipe(resolved, check_tasks(tasks), check_new_run(run), find_model(start))

        def on_stored(
            run: RunFolder,
            start: Start,
            overrides: Overrides = None,
            preset: Preset = "",
            config: Config = None,
            dry_run: DryRun = False,
        ) -> None:
            resolved = resolve(cls, overrides, config, preset, dry_run)
            recipe(resolved, run, check_run(run), find_model(start))

        command = on_tasks if needs_tasks else on_stored
        app.command(name, help=recipe.__doc__)(command)
        return recipe

    return register


@app.command()
def base(
    out: Annotated[Path, typer.Argument(help="Model folder to make; the training state is next to it until the end.")],
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Pre-train a small base from scratch on simulated repairs; an interrupted call resumes.

    Example: repairgym train base models/base num_tokens=2000000
    """
    resolved = resolve(PretrainingConfig, overrides, config, preset, dry_run)
    from repairgym.cli.display import ProgressDisplay
    from repairgym.cli.running import require_one_process
    from repairgym.pretraining.corpus import held_out_digests
    from repairgym.pretraining.pretraining import pretrain
    from repairgym.tasks.layers.store import LayerStore

    require_one_process()
    with ProgressDisplay() as progress:
        pretrain(resolved, out, progress, excluded=held_out_digests(LayerStore()))
    typer.echo(f"base model: {out}")


@_recipe("sft", SftCommandConfig, needs_tasks=False)
def sft(resolved: SftCommandConfig, _: Path, run: Path, start: Path) -> None:
    """Imitate the passed trajectories of a run (paper A's settings by default).

    Example: repairgym train sft runs/teacher models/base phase=rollout sft.choice.type=loss
    """
    _fit_stored(run, start, "sft", resolved.phase, resolved.max_per_task, resolved.sft)


@app.command()
def rft(
    run: Annotated[Path, typer.Argument(help="Run folder with the policy's trajectories; with --tasks a new one.")],
    start: Start,
    overrides: Overrides = None,
    tasks: Annotated[Path | None, typer.Option(help="Sample on the training tasks of this folder first.")] = None,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Rejection fine-tuning: the policy's own passed trajectories, format errors masked (paper B, section 4.2).

    Example: repairgym train rft runs/own models/sft --tasks tasks collect.num_tasks=100
    """
    resolved = resolve(RftCommandConfig, overrides, config, preset, dry_run)
    model = find_model(start)
    if tasks is None:
        _fit_stored(check_run(run), model, "rft", resolved.phase, resolved.collect.max_per_task, resolved.rft)
        return
    folder = check_tasks(tasks)
    from repairgym.cli.running import import_checkpoint, open_run
    from repairgym.recipes.rft import START, rft
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        call = CallConfig("train-rft", resolved)
        with open_run(run, folder, model, resolved.rollout, resolved.seed, call=call) as opened:
            import_checkpoint(run, model, START)
            typer.echo(f"model: {rft(opened, resolved)}")

    lead_or_follow(recipe, resolved.rft)


def _fit_stored(run: Path, start: Path, stage: str, phase: str, max_per_task: int, config: SftConfig) -> None:
    """Train on the passed trajectories of a stored run."""
    from repairgym.cli.display import ProgressDisplay
    from repairgym.inference.loading import load_tokenizer
    from repairgym.rollout.store import RunStore
    from repairgym.training.processes import lead_or_follow
    from repairgym.training.supervised import fit_samples, keep_successes, supervised_samples

    def recipe() -> None:
        with RunStore.open(run / "run.db") as store, ProgressDisplay() as progress:
            # By id: the order in which episodes happened to end must not decide what is learned.
            stored = sorted(store.trajectories(phase=phase), key=lambda trajectory: trajectory.id)
            successes = keep_successes(stored, max_per_task)
            if not successes:
                raise TaskError(f"{run} has no passed trajectory in phase {phase!r}; run repairgym rollout first")
            samples = supervised_samples(successes, config, load_tokenizer(start))
            target = run / "checkpoints" / stage
            fit_samples(start, target, samples, config, store, progress)
            typer.echo(f"model: {target}")

    lead_or_follow(recipe, config)


@_recipe("step_dpo", StepDpoCommandConfig, needs_tasks=False)
def step_dpo(resolved: StepDpoCommandConfig, _: Path, run: Path, start: Path) -> None:
    """Prefer the actions of a run that led to more reward than others after the same history (Agent Q).

    Example: repairgym train step_dpo runs/own models/rft phase=rollout min_gap=0.25
    """
    from repairgym.recipes.step_dpo import step_dpo
    from repairgym.rollout.store import RunStore
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        target = run / "checkpoints" / "step_dpo"
        with RunStore.open(run / "run.db") as store:
            metrics = step_dpo(store, start, target, resolved)
        num_pairs, loss = metrics["preference/num_pairs"], metrics["preference/loss"]
        typer.echo(f"pairs: {num_pairs:.0f}, loss {loss:.3f}, model: {target}")

    lead_or_follow(recipe, resolved.step_dpo)


@_recipe("rl", RlCommandConfig)
def rl(resolved: RlCommandConfig, tasks: Path, run: Path, start: Path) -> None:
    """One stage of RL (paper B's DAPO by default; rl.algorithm=grpo, gspo, ...: docs/howto/algorithms.md).

    Example: repairgym train rl tasks runs/rl models/rft rl.num_groups=16 rl.algorithm.group_size=8
    """
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


@_recipe("dapo_two_stage", TwoStageConfig)
def dapo_two_stage(resolved: TwoStageConfig, tasks: Path, run: Path, start: Path) -> None:
    """DAPO, then DAPO on the tasks worth more work in a longer context (paper B, section 4.3).

    Example: repairgym train dapo_two_stage tasks runs/two models/rft --preset paper_b/two_stage
    """
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


@_recipe("distill_then_grpo", DistillThenGrpoConfig)
def distill_then_grpo(resolved: DistillThenGrpoConfig, tasks: Path, run: Path, start: Path) -> None:
    """Imitate a teacher, then GRPO (paper A).

    Example: repairgym train distill_then_grpo tasks runs/a models/base --preset paper_a/distill_then_grpo
    """
    teacher = find_policy(resolved.teacher, resolved.rollout.temperature, resolved.endpoint)
    from repairgym.cli.running import check_policy, import_checkpoint, open_run
    from repairgym.recipes.distill_then_grpo import distill_then_grpo
    from repairgym.training.processes import lead_or_follow

    def recipe() -> None:
        check_policy(teacher, start, resolved.rollout)
        import_checkpoint(run, start, "start")
        call = CallConfig("train-distill_then_grpo", resolved)
        distill_then_grpo(
            lambda rollout: open_run(run, tasks, start, rollout, resolved.seed, resolved.watch, call), resolved, teacher
        )
        typer.echo(f"model: {run / 'checkpoints' / 'grpo'}")

    lead_or_follow(recipe, resolved.sft, resolved.rl.algorithm)


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
    if dry_run:
        typer.echo(plan.as_toml(), nl=False)
        return
    from repairgym.bridges.verl.training import check_stages, stages_of, train_with_verl
    from repairgym.bridges.versions import check_verl_versions

    stages = stages_of(plan.config)
    check_stages(stages, plan.machine)
    check_verl_versions(plan.machine)
    check_tasks(tasks)
    model = find_model(start)
    from repairgym.cli.running import import_checkpoint, open_run, require_one_process
    from repairgym.recipes.dapo_two_stage import START

    require_one_process()
    call, machine_call = plan.calls()
    with open_run(run, tasks, model, stages[0].rollout, plan.config.seed, plan.config.watch, call) as opened:
        keep_config(run, machine_call)
        import_checkpoint(run, model, START)
        stage = train_with_verl(opened, plan.config, plan.machine, tasks, plan.comments)
    typer.echo(f"model: {run / 'checkpoints' / stage}")
