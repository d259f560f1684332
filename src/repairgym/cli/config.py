"""`repairgym config`: show, explain and export the settings of every command, and list the shipped presets.

Reads config classes and presets; prints. Guarantee: imports no torch.
"""

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.options import AsJson, print_json
from repairgym.config.loading import preset_names, preset_title
from repairgym.errors import ConfigError
from repairgym.records import Record

app = typer.Typer(
    help="Show and explain every setting; list the shipped presets.", no_args_is_help=True, add_completion=False
)

Name = Annotated[list[str], typer.Argument(help="Command (rl, tasks build, demo) or key (rl.algorithm).")]


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print the resolved defaults of a command or section as TOML, with the meaning of each key.

    Example: repairgym config show rl

    Example: repairgym config show rl.algorithm
    """
    from repairgym.config.reference import commented_toml, default_of, find_place

    if not as_json:
        typer.echo(commented_toml(" ".join(name)), nl=False)
        return
    value = default_of(find_place(" ".join(name)))
    print_json(value.model_dump(mode="json") if isinstance(value, Record) else value)


@app.command()
def explain(name: Name) -> None:
    """Explain a setting: type, bounds, default, meaning; of a section each choice with its keys.

    Example: repairgym config explain rl.algorithm.loss
    """
    from repairgym.config.reference import explain_setting

    typer.echo(explain_setting(" ".join(name)), nl=False)


@app.command()
def schema(command: Annotated[list[str], typer.Argument(help="Command, e.g. rl or tasks build.")]) -> None:
    """Print the JSON schema of a command's configuration, for editors of its TOML file.

    Example: repairgym config schema rl
    """
    from repairgym.config.reference import json_schema

    typer.echo(json_schema(" ".join(command)))


@app.command()
def presets(
    name: Annotated[str, typer.Argument(help="Preset to print; without it all are listed.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the configurations that ship with the package (--preset NAME), or print one.

    Example: repairgym config presets paper_b/two_stage
    """
    from repairgym.config.loading import preset_file

    if name:
        typer.echo(preset_file(name).read_text(encoding="utf-8"), nl=False)
        return
    titles = {preset: preset_title(preset) for preset in preset_names()}
    if as_json:
        print_json(titles)
        return
    width = max(map(len, titles)) + 2
    for preset, title in titles.items():
        typer.echo(f"{preset:<{width}}{title}")


@app.command()
def reference(
    out: Annotated[Path | None, typer.Option(help="Page to write; default: print it.")] = None,
    is_check: Annotated[bool, typer.Option("--check", help="Fail if --out is not current.")] = False,
) -> None:
    """Write the reference page of all settings (for maintainers).

    Example: repairgym config reference --out docs/reference/configuration.md
    """
    from repairgym.config.reference import reference_page

    page = reference_page()
    if out is None:
        typer.echo(page, nl=False)
    elif not is_check:
        out.write_text(page, encoding="utf-8")
    elif not out.is_file() or out.read_text(encoding="utf-8") != page:
        raise ConfigError(f"{out} is not current; run: repairgym config reference --out {out}")
