"""`repairgym trajectories parquet`: trajectories or training samples of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.options import Config, DryRun, Overrides, resolve
from repairgym.config.trajectory_tables import TrajectoryTablesConfig


def parquet(
    run: Annotated[Path, typer.Argument(help="Run folder; it holds run.db.")],
    out: Annotated[Path, typer.Argument(help="File (layout=parquet) or folder (layout=dataset) to make.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Write trajectories or samples of a run as Parquet; `datasets.load_dataset(OUT)` reads the folder.

    Example: repairgym trajectories parquet runs/rl samples what=samples phase=rl
    """
    resolved = resolve(TrajectoryTablesConfig, config, overrides, dry_run)
    from repairgym.rollout.store import RunStore
    from repairgym.studies.trajectory_tables import export_run

    with RunStore.open(run / "run.db", is_read_only=True) as store:
        num_rows = export_run(store, out, resolved)
    typer.echo(f"{out}: {num_rows} {resolved.what}")
