"""`mend train`: base, sft, rft, rl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mendwright.config.commands import RlCommandConfig, SupervisedCommandConfig
from mendwright.config.loading import load_config, to_toml
from mendwright.config.recipes import PretrainingConfig
from mendwright.errors import TaskError

app = typer.Typer(help="Train a model: base, sft, rft, rl.", no_args_is_help=True)

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
    start: Annotated[Path, typer.Argument(help="Model folder to start from.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Imitate the passed trajectories of a run (paper A's settings by default).

    Example: mend train sft runs/teacher models/base phase=rollout
    """
    _supervised(run, start, "sft", load_config(SupervisedCommandConfig, config, overrides or []), dry_run)


@app.command()
def rft(
    run: Annotated[Path, typer.Argument(help="Run folder with the policy's own trajectories.")],
    start: Annotated[Path, typer.Argument(help="Model folder to start from.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Rejection fine-tuning: the policy's own passed trajectories, format errors masked (paper B, section 4.2).

    Example: mend train rft runs/own runs/own/checkpoints/sft phase=rollout
    """
    _supervised(run, start, "rft", load_config(SupervisedCommandConfig, config, overrides or []), dry_run)


def _supervised(folder: Path, start: Path, stage: str, config: SupervisedCommandConfig, dry_run: bool) -> None:
    if dry_run:
        typer.echo(to_toml(config), nl=False)
        return
    from mendwright.cli.progress import ProgressDisplay
    from mendwright.recipes.supervised import fit_samples, keep_successes, supervised_samples
    from mendwright.rollout.store import RunStore

    chosen = config.sft if stage == "sft" else config.rft
    with RunStore.open(folder / "run.db") as store, ProgressDisplay() as progress:
        # By id: the order in which episodes happened to end must not decide what is learned.
        found = sorted(store.trajectories(phase=config.phase), key=lambda trajectory: trajectory.id)
        kept = keep_successes(found, config.max_per_task)
        if not kept:
            raise TaskError(f"{folder} has no passed trajectory in phase {config.phase!r}; run mend rollout first")
        target = folder / "checkpoints" / stage
        fit_samples(start, target, supervised_samples(kept, chosen), chosen, store, progress)
    typer.echo(f"model: {target}")


@app.command()
def rl(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks; the train split is used.")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted run is continued.")],
    start: Annotated[Path, typer.Argument(help="Model folder to start from.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """DAPO (paper B's settings by default).

    Example: mend train rl tasks runs/rl models/rft --config configs/demo-rl.toml
    """
    resolved = load_config(RlCommandConfig, config, overrides or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    from mendwright.cli.running import import_checkpoint, open_run
    from mendwright.recipes.dapo import DapoLoop

    with open_run(run, tasks, start, resolved.rollout, resolved.seed, resolved.watch) as opened:
        import_checkpoint(opened, start, "start")
        loop = DapoLoop(opened, resolved.rl, "start", resolved.watch.alarms)
        with opened.store.phase("dapo"):
            for metrics in loop.iterations():
                reward = metrics["rollout/reward_mean"]
                opened.progress("dapo", loop.num_done, resolved.rl.max_iterations, f"reward {reward:.2f}")
        loop.keep("dapo")
    typer.echo(f"model: {run / 'checkpoints' / 'dapo'}")
