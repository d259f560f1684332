"""Commands that are imported when they are run, so that ``repairgym --help`` needs neither torch nor a second.

Reads a table of modules; makes a command group. Invariants: listing commands imports none of their modules, and a
command is listed when, and only when, its module exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class CommandEntry(NamedTuple):
    """Where a command is and what it is for."""

    name: str
    module: str
    """Module with a Typer ``app``, or with a function called ``name``."""
    summary: str


class LazyCommand(TyperCommand):
    """Stands for a command in listings; becomes the real one when its arguments are parsed."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.summary, rich_help_panel=None)
        self._entry = entry

    def load(self) -> Any:
        """The real command (a group where the module has several)."""
        module = import_module(self._entry.module)
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False)
            app.command(name=self.name)(getattr(module, self._entry.name))
        command = typer.main.get_command(app)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse ``args`` with the real command."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """A group over `CommandEntry` rows; subclasses set ``entries``."""

    entries: Sequence[CommandEntry] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands whose modules exist, in the order of the table."""
        return [entry.name for entry in self.entries if find_spec(entry.module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The stand-in for ``cmd_name``, or None."""
        return next(
            (LazyCommand(entry) for entry in self.entries if entry.name == cmd_name and find_spec(entry.module)), None
        )
