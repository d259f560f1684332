"""Shared arguments and options of commands, and the configuration built from them.

Arguments are in the order TASKS RUN MODEL; a command takes those that it needs. A configuration comes from --preset,
then each --config, then ``a.b=value``; later ones win.
"""

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repairgym.config.loading import ConfigT, load_config, preset_file, to_toml

Tasks = Annotated[Path, typer.Argument(help="Folder of tasks (repairgym tasks build).")]
TaskFolder = Annotated[Path, typer.Argument(help="Folder of the tasks.")]
RunFolder = Annotated[Path, typer.Argument(help="Run folder; it holds run.db.")]
NewRun = Annotated[Path, typer.Argument(help="Run folder; an interrupted run is continued.")]
Start = Annotated[Path, typer.Argument(help="Model to start from: a folder, base (the shipped model) or a hub id.")]
TasksOption = Annotated[Path | None, typer.Option("--tasks", help="Folder of tasks; default: RUN/tasks.")]
Tokenizer = Annotated[Path | None, typer.Option("--model", help="Folder with the tokenizer; default: the policy's.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings a.b=value; all of them: repairgym config show COMMAND.")
]
Config = Annotated[list[Path] | None, typer.Option("--config", help="TOML file; may repeat, later ones win.")]
Preset = Annotated[str, typer.Option("--preset", help="Shipped configuration to start from: repairgym config presets.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and exit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")]


def resolve(
    cls: type[ConfigT],
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
) -> ConfigT:
    """Return the configuration of a call; a dry run prints it and exits."""
    resolved = load_config(cls, config_files(config, preset), overrides or ())
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        raise typer.Exit
    return resolved


def configured(
    command: Callable[..., None], check_dry: Callable[[Any, dict[str, Any]], None] | None = None
) -> Callable[..., None]:
    """Give a command the arguments of `resolve` in place of its parameter ``config``, which gets the configuration.

    The overrides are where ``config`` is; the options follow those of the command. ``check_dry`` is called in a dry run
    with the configuration and the command's own arguments, after the configuration was printed.
    """
    own = inspect.signature(command, eval_str=True).parameters
    overrides, *options = list(inspect.signature(resolve).parameters.values())[1:]
    shared = (overrides.name, *(option.name for option in options))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        settings = {name: given.pop(name) for name in shared}
        is_dry_run = settings.pop("dry_run")
        config = resolve(own["config"].annotation, **settings)
        if not is_dry_run:
            command(config=config, **given)
            return
        typer.echo(to_toml(config), nl=False)
        if check_dry:
            check_dry(config, given)

    parameters = [*(overrides if name == "config" else parameter for name, parameter in own.items()), *options]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run


def config_files(config: Sequence[Path] | None, preset: str = "") -> list[Path]:
    """Return the files of --preset and --config, in the order in which they are read."""
    return [*([preset_file(preset)] if preset else []), *(config or ())]


def print_json(value: Any) -> None:
    """Print plain data as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


def port_override(port: int | None) -> list[str]:
    """Return the override that --port means."""
    return [] if port is None else [f"port={port}"]
