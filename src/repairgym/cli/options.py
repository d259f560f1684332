"""Options of the commands that have a config: a TOML file, overrides, and the dry run that prints what both make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.config.loading import ConfigT, load_config, to_toml

Overrides = Annotated[list[str] | None, typer.Argument(help="a.b=value")]
Config = Annotated[Path | None, typer.Option(help="TOML file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and leave.")]


def resolve(cls: type[ConfigT], file: Path | None, overrides: list[str] | None, is_dry_run: bool) -> ConfigT:
    """The config of a call.

    Raises:
        typer.Exit: only it was wanted, and it is printed.
        InputError, ConfigError: as of `load_config`.
    """
    resolved = load_config(cls, file, overrides or [])
    if is_dry_run:
        typer.echo(to_toml(resolved), nl=False)
        raise typer.Exit
    return resolved
