"""`repairgym analyze`, `repairgym report` and `repairgym view`: a run in tables, figures and web pages.

Reads run folders; prints tables, paths and the address of the pages. Guarantee: no analysis or page logic is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.arguments import open_stored
from repairgym.cli.options import Config, DryRun, Overrides, Port, Preset, RunFolder, port_override, resolve
from repairgym.config.commands import ViewConfig
from repairgym.config.evaluation import AnalysisConfig, DataFilesConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, InputError, install_hint

FOLDER = "analysis"
_MAX_ROWS = 20


def analyze(
    run: RunFolder,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and figures; default: RUN/analysis.")] = None,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Tools, policy shift, loops, errors, exploits, reward against validation, drift: of stored trajectories.

    Example: repairgym analyze runs/demo before=eval/rft/test-mutations after=eval/rl/test-mutations
    """
    resolved = resolve(AnalysisConfig, overrides, config, preset, dry_run)
    from repairgym.analysis.behavior import tools_by_use
    from repairgym.analysis.overview import analyze_run
    from repairgym.analysis.tables import analysis_tables
    from repairgym.cli.display import print_table
    from repairgym.report.data_files import export
    from repairgym.report.figures import NUM_COLORS, exploit_plot, gap_plot, share_plot
    from repairgym.report.wording import gap_claim, shift_claim

    with open_stored(run) as store:
        found = analyze_run(store, resolved)
    tables = analysis_tables(found)
    figures = (share_plot(found.tools_by_step, tools_by_use(found.tools_by_step)[:NUM_COLORS]), gap_plot(found.gap))
    drawn = [figure for figure in (*figures, exploit_plot(found.exploits, list(found.tools_by_step))) if figure]
    for one in tables:
        print_table(one, _MAX_ROWS)
    for claim in (shift_claim(found.shift) if found.shift else "", gap_claim(found.trend) if found.trend else ""):
        if claim:
            typer.echo(claim)
    paths = export(tables, drawn, out or run / FOLDER, resolved.export)
    typer.echo(f"{len(tables)} tables, {len(drawn)} figures, {len(paths)} files in {out or run / FOLDER}")


COMPARISON_FILE = "comparison.html"


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
    export: Annotated[list[str] | None, typer.Option("--set", help='Setting of --data, e.g. tables=["csv"].')] = None,
) -> None:
    """Write report.html and summary.json into a run folder; a run that is not finished gets one too.

    Example: repairgym report runs/demo --open

    Example: repairgym report --compare runs/seed0 runs/seed1 --out seeds.html
    """
    from repairgym.report.html import write_comparison, write_data, write_report

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


def view(
    runs: Annotated[Path, typer.Argument(help="Folder of a run, or a folder that holds runs.")],
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default: 127.0.0.1. Others need a token.")] = "",
    port: Port = None,
    token: Annotated[
        str, typer.Option(envvar="REPAIRGYM_VIEW_TOKEN", help="What a browser must show (made up where it is needed).")
    ] = "",
    is_opened: Annotated[bool, typer.Option("--open", help="Show the first page in the web browser.")] = False,
) -> None:
    """Show runs, groups, trajectories and tokens as web pages, live while a run goes on; changes nothing in a run.

    Example: repairgym view runs --open
    """
    given = [*([f"host='{host}'"] if host else []), *port_override(port)]
    resolved = load_config(ViewConfig, None, [*(overrides or []), *given])
    try:
        from repairgym.view.app import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError(f"{error.name} is not installed; install it: {install_hint('view')}") from error

    def tell(address: str) -> None:
        typer.echo(f"{address}  (Ctrl-C ends it)")
        if is_opened:
            typer.launch(address)

    serve(runs, host=resolved.host, port=resolved.port, token=token, tell=tell)
