"""`repairgym analyse`: how the policy of a run behaves, in tables and figures.

Reads a run folder; prints the tables and writes them as files. Invariant: no analysis is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.options import Config, DryRun, Overrides, resolve
from repairgym.config.evaluation import AnalysisConfig

FOLDER = "analysis"
_MAX_ROWS = 20


def analyse(
    run: Annotated[Path, typer.Argument(help="Run folder; it may be unfinished.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and figures; default: RUN/analysis.")] = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Tools, policy shift, loops, errors, exploits, reward against validation, drift: of stored trajectories.

    Example: repairgym analyse runs/demo before=eval/rft/test-mutations after=eval/rl/test-mutations
    """
    resolved = resolve(AnalysisConfig, config, overrides, dry_run)
    from repairgym.analysis.overview import analyse_run
    from repairgym.analysis.tables import analysis_tables
    from repairgym.analysis.tool_use import tools_by_use
    from repairgym.cli.tables import print_table
    from repairgym.report.data_files import export
    from repairgym.report.figures import NUM_COLOURS, exploit_plot, gap_plot, share_plot
    from repairgym.report.wording import gap_claim, shift_claim
    from repairgym.rollout.store import RunStore

    with RunStore.open(run / "run.db", is_read_only=True) as store:
        found = analyse_run(store, resolved)
    tables = analysis_tables(found)
    figures = (share_plot(found.tools_by_step, tools_by_use(found.tools_by_step)[:NUM_COLOURS]), gap_plot(found.gap))
    drawn = [figure for figure in (*figures, exploit_plot(found.exploits, list(found.tools_by_step))) if figure]
    for one in tables:
        print_table(one, _MAX_ROWS)
    for claim in (shift_claim(found.shift) if found.shift else "", gap_claim(found.trend) if found.trend else ""):
        if claim:
            typer.echo(claim)
    paths = export(tables, drawn, out or run / FOLDER, resolved.export)
    typer.echo(f"{len(tables)} tables, {len(drawn)} figures, {len(paths)} files in {out or run / FOLDER}")
