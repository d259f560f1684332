"""`repairgym sweep`: random search over settings, or a comparison of arms, as child runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repairgym.cli.arguments import check_new_run
from repairgym.cli.options import AsJson, NewRun, configured, print_json
from repairgym.config.loading import load_config, toml_value
from repairgym.config.sweep import SweepConfig
from repairgym.errors import ConfigError, InputError

if TYPE_CHECKING:
    from repairgym.analysis.sweeps import SweepRun

PAGE_FILE = "sweep.html"
_FREE = (
    *("num_runs", "num_seeds", "num_concurrent", "metric", "reference"),
    *("window", "num_resamples", "num_bins", "is_higher_better"),
)
"""Settings that a later call may change: they decide how much is run and how it is read."""


def show_plan(config: SweepConfig, given: dict[str, Any]) -> None:
    """Print the children's commands."""
    from repairgym.studies.sweep import child_words, planned_runs

    folder = given["run"]
    for row in planned_runs(_stored(folder, config)):
        typer.echo(f"{row.number:03d} {' '.join(child_words(row, _stored(folder, config), folder))}", err=True)


@partial(configured, check_dry=show_plan)
def sweep(
    run: NewRun,
    config: SweepConfig,
    is_shown: Annotated[bool, typer.Option("--show", help="Show what has ended; run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a command many times with drawn settings, or with named arms and seeds; say what matters and what it cost.

    Without --config a folder's own plan is used.

    Example: repairgym sweep runs/sweep --config sweep.toml num_runs=40
    """
    from repairgym.analysis.sweeps import importance_of, rank_arms
    from repairgym.analysis.tables import sweep_tables
    from repairgym.cli.display import ProgressDisplay, print_table, rows_of
    from repairgym.report.sweep_page import write_sweep_page
    from repairgym.rollout.calls import locked
    from repairgym.studies.sweep import compare_arms, planned_runs, read_results, run_sweep, value_again
    from repairgym.training.run_settings import CallConfig, keep_config

    check_new_run(run)
    config = _stored(run, config)
    planned_runs(config)
    if is_shown:
        rows = [value_again(row, config, run) for _, row in sorted(read_results(run).items())]
    else:
        run.mkdir(parents=True, exist_ok=True)
        with locked(run), ProgressDisplay(console=None) as progress:
            keep_config(run, CallConfig("sweep", config, free=_FREE))
            rows = run_sweep(config, run, lambda done, total, left: progress("sweep", done, total, left))
    if not any(row.value is not None for row in rows):
        raise InputError(f"no run of {run} has ended with a value yet; its logs are in {run / 'logs'}")
    settings = [] if config.arms else importance_of(rows, config)
    arms = rank_arms(_by_arm(rows), is_higher_better=config.is_higher_better) if config.arms else []
    tables = sweep_tables(rows, settings, arms, compare_arms(rows, config, run))
    page = write_sweep_page(run / PAGE_FILE, run.resolve().name, config, rows, tables)
    if as_json:
        print_json({"page": str(page), "tables": rows_of(tables)})
        return
    for table in tables:
        print_table(table, max_rows=30)
    typer.echo(f"page: {page}")


def _by_arm(rows: list[SweepRun]) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.value is not None:
            values.setdefault(row.arm, {})[row.seed] = row.value
    return values


def _stored(folder: Path, config: SweepConfig) -> SweepConfig:
    """Return ``config``; the folder's own where no command is given."""
    file = folder / "configs" / "sweep.toml"
    if config.command or config.program:
        return config
    if not file.is_file():
        raise ConfigError("the sweep has no command; give command or program in --config (repairgym config show sweep)")
    given = config.model_dump(mode="python", include=config.model_fields_set)
    return load_config(SweepConfig, file, [f"{name}={toml_value(value)}" for name, value in given.items()])
