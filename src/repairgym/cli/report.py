"""`repairgym report`: write the HTML report of a run folder, its numbers as files, or a comparison of runs.

Reads run folders; prints where the report is. Invariant: no report logic is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.config.evaluation import DataFilesConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError

app = typer.Typer(help="Write the HTML report of a run folder.", add_completion=False)
COMPARISON_FILE = "comparison.html"


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of the run; it holds run.db. Several with --compare.")],
    is_opened: Annotated[bool, typer.Option("--open", help="Show the report in the web browser.")] = False,
    is_comparison: Annotated[
        bool,
        typer.Option("--compare", help="Compare the runs on what they have in common; the first is the reference."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File of the comparison; default: comparison.html in the last run's folder.")
    ] = None,
    is_data_written: Annotated[
        bool, typer.Option("--data", help="Also write every table and figure as files, into RUN/data.")
    ] = False,
    export: Annotated[
        list[str] | None, typer.Option("--set", help='Setting of --data, e.g. tables=["csv"] or png_dpi=200.')
    ] = None,
) -> None:
    """Write report.html and summary.json into a run folder; a run that is not finished gets one too.

    Example: repairgym report runs/demo --open

    Example: repairgym report --compare runs/seed0 runs/seed1 --out seeds.html
    """
    from repairgym.report.comparison import write_comparison
    from repairgym.report.html import write_data, write_report

    if is_comparison:
        path = write_comparison(runs, out or runs[-1] / COMPARISON_FILE)
    elif len(runs) > 1 or out:
        raise ConfigError(f"got {len(runs)} runs{' and --out' if out else ''}; to compare runs, add --compare")
    else:
        path = write_report(runs[0])
        if is_data_written:
            for written in write_data(runs[0], load_config(DataFilesConfig, None, export or [])):
                typer.echo(str(written))
    typer.echo(str(path))
    if is_opened:
        typer.launch(path.resolve().as_uri())
