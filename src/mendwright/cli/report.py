"""`mend report`: write the HTML report of a run folder.

Reads a run folder; prints where the report is and its first sentence. Invariant: no report logic is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Write the HTML report of a run folder.", add_completion=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of the run; it holds run.db.")],
    is_opened: Annotated[bool, typer.Option("--open", help="Show the report in the web browser.")] = False,
) -> None:
    """Write report.html and summary.json into a run folder; a run that is not finished gets one too.

    Example: mend report runs/demo --open
    """
    from mendwright.report.html import write_report

    path = write_report(run)
    typer.echo(str(path))
    if is_opened:
        typer.launch(path.resolve().as_uri())
