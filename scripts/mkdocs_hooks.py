"""Hooks of the documentation site: the command-line reference, written from the commands themselves.

mkdocs calls `on_page_markdown` for every page; the marker ``<!-- commands -->`` becomes one section per command with
its help, examples, arguments and options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from repairgym.cli.main import LazyCommand, create_app

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker by the reference of all commands."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n".join(_sections(typer.main.get_command(create_app()), "repairgym", 2)))


def _sections(command: Any, name: str, level: int) -> Iterator[str]:
    command = command.load() if isinstance(command, LazyCommand) else command
    if level > 2:
        yield f"{'#' * (level - 1)} {name}\n"
        yield _help(command.help or "") + "\n"
        yield from _parameters(command)
    for child in command.list_commands(None) if hasattr(command, "list_commands") else ():
        loaded = command.get_command(None, child)
        if loaded is not None and not getattr(loaded, "hidden", False):
            yield from _sections(loaded, f"{name} {child}", level + 1)


def _help(text: str) -> str:
    """Help as Markdown: ``Example:`` paragraphs become code blocks, places in angle brackets stay text."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        line = re.sub(r"\s+", " ", paragraph).strip()
        if line.startswith("Example:"):
            paragraphs.append(f"```sh\n{line.removeprefix('Example:').strip()}\n```")
        else:
            paragraphs.append(line.replace("<", "&lt;"))
    return "\n\n".join(paragraphs)


def _parameters(command: Any) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        if "--help" in parameter.opts or getattr(parameter, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        if parameter.param_type_name == "argument":
            names = f"`{(parameter.metavar or parameter.name).upper()}`"
        text = re.sub(r"\s+", " ", getattr(parameter, "help", None) or "").replace("|", "\\|").replace("<", "&lt;")
        default = (
            "required"
            if parameter.required
            else ""
            if parameter.default in (None, False, ())
            else f"`{parameter.default}`"
        )
        rows.append(f"| {names} | {text} | {default} |")
    if rows:
        yield "| name | meaning | default |\n|---|---|---|"
        yield "\n".join(rows) + "\n"
