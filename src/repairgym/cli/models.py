"""`repairgym models`: prepare model folders."""

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.arguments import find_model
from repairgym.cli.options import Start
from repairgym.errors import InputError

app = typer.Typer(help="Prepare model folders.", no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None:
    """Prepare model folders."""


@app.command()
def stretch(
    model: Start,
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
    factor: Annotated[
        float, typer.Option(min=1.0, max=1024.0, help="Positions of the result, as a multiple of the original ones.")
    ],
    original: Annotated[
        int | None,
        typer.Option(min=1, help="Original positions; default: those of the maker or an earlier stretch."),
    ] = None,
) -> None:
    """Copy a model with rotary positions stretched by YaRN; a second stretch counts from the original positions, too.

    Example: repairgym models stretch Qwen/Qwen2.5-72B-Instruct models/qwen-65k --factor 2
    """
    from repairgym.inference.stretching import stretch_folder

    if out.exists():
        raise InputError(f"{out} exists; name a folder that does not")
    made = stretch_folder(find_model(model), out, factor, original)
    typer.echo(f"{out}: {made.positions:,} positions (YaRN {made.factor:g} of {made.original:,})")
