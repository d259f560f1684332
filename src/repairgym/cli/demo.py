"""`repairgym demo`: the whole loop on this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import Config, DryRun, Overrides, Preset, resolve
from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import DemoConfig
from repairgym.errors import ConfigError, InputError

RUNS = Path("runs")


def demo(
    overrides: Overrides = None,
    minutes: Annotated[float | None, typer.Option(help="Wall-clock budget; 2 runs every phase, small.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; default: a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume --run, or the newest demo run.")] = False,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Pre-train the base model too.")] = False,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Run the whole loop: real packages, tasks, RFT, DAPO, evaluation, report.html.

    Example: repairgym demo --minutes 60
    """
    extra = [f"minutes={float(minutes)}"] if minutes is not None else []
    extra += ["is_from_scratch=true"] if from_scratch else []
    if resume:
        if preset or config or overrides or extra:
            raise ConfigError(
                "--resume resumes the run's own config; leave out --preset, --config, --minutes and overrides"
            )
        folder = run or _newest()
        resolved = load_config(DemoConfig, folder / "config.toml")
        if dry_run:
            typer.echo(to_toml(resolved), nl=False)
            return
    else:
        folder = run or RUNS / time.strftime("demo-%Y%m%d-%H%M%S")
        resolved = resolve(DemoConfig, [*(overrides or []), *extra], preset, config, dry_run)
    from repairgym.cli.running import require_one_process

    require_one_process()
    if not resume:
        if (folder / "config.toml").exists():
            raise InputError(f"{folder} holds a run already; resume it with: repairgym demo --resume --run {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(to_toml(resolved), encoding="utf-8")
    _run(folder, resolved)


def _newest() -> Path:
    runs = sorted(path.parent for path in RUNS.glob("demo-*/config.toml"))
    if not runs:
        raise InputError(f"no demo run under {RUNS}/ to resume; start one with: repairgym demo")
    return runs[-1]


def _run(folder: Path, config: DemoConfig) -> None:
    from repairgym.recipes.demo import Demo
    from repairgym.report.html import write_report

    typer.echo(f"run folder: {folder}", err=True)
    try:
        with ProgressDisplay(folder, budget_s=60.0 * config.minutes) as progress:
            Demo(config, folder, progress).run()
            progress("report", 0, 1, "")
            page = write_report(folder)
            progress("report", 1, 1, "")
    except KeyboardInterrupt:
        typer.echo(f"stopped; resume with: repairgym demo --resume --run {folder}", err=True)
        raise
    typer.echo(f"summary: {folder / 'summary.json'}")
    typer.echo(f"report: {page}")
