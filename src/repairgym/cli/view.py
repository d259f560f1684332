"""`repairgym view`: look at runs in a web browser, down to single tokens.

Reads run folders; prints the address of the pages. Invariant: no page logic is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.errors import InputError, install_hint

app = typer.Typer(help="Look at runs and their trajectories in a web browser.", add_completion=False)


@app.command()
def view(
    runs: Annotated[Path, typer.Argument(help="Folder of a run, or a folder that holds runs.")],
    host: Annotated[str, typer.Option(help="Address to listen on; other machines reach it only with a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8320,
    token: Annotated[
        str, typer.Option(envvar="REPAIRGYM_VIEW_TOKEN", help="What a browser must show (made up where it is needed).")
    ] = "",
    is_opened: Annotated[bool, typer.Option("--open", help="Show the first page in the web browser.")] = False,
) -> None:
    """Show runs, groups, trajectories and tokens as web pages, live while a run goes on; changes nothing in a run.

    Example: repairgym view runs --open
    """
    try:
        from repairgym.view.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError(f"{error.name} is not installed; install it: {install_hint('view')}") from error

    def tell(address: str) -> None:
        typer.echo(f"{address}  (Ctrl-C ends it)")
        if is_opened:
            typer.launch(address)

    serve(runs, host=host, port=port, token=token, tell=tell)
