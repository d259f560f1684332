"""The `repairgym` command: assembles the commands of this folder and turns what they raise into a line and an exit code.

Reads the command line; makes an exit status. Invariants: a deliberate error (`repairgym.errors`) is one line on stderr
and its exit code, anything else is a bug and shows its traceback; no other module maps errors to exit codes.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from repairgym import __version__
from repairgym.cli.exit_codes import BROKEN_PIPE, BUG, EXIT_CODES, find_repairgym_error


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


COMMANDS = (
    CommandEntry("demo", "repairgym.cli.demo", "Run the whole loop on this machine and write its report."),
    CommandEntry("doctor", "repairgym.cli.doctor", "Say what this machine can do and how to fix what is missing."),
    CommandEntry("tasks", "repairgym.cli.tasks", "Build, verify and show validated repair tasks."),
    CommandEntry("grade", "repairgym.cli.grade", "Grade the patches of any agent against tasks."),
    CommandEntry("rollout", "repairgym.cli.episodes", "Run a policy on tasks and grade what it delivers."),
    CommandEntry("scaffolds", "repairgym.cli.episodes", "Check each pipeline with an oracle and a do-nothing agent."),
    CommandEntry("knowledge", "repairgym.cli.knowledge", "Fill and ask the knowledge base of past fixes."),
    CommandEntry("serve", "repairgym.cli.serve", "Serve a model or a script to agents of any make."),
    CommandEntry("replay", "repairgym.cli.episodes", "Replay stored episodes in new sandboxes and compare."),
    CommandEntry("trajectories", "repairgym.cli.trajectories", "Trajectories for other systems and from them."),
    CommandEntry("plan", "repairgym.cli.plan", "Reckon memory and time of RL on given machines."),
    CommandEntry("cluster", "repairgym.cli.cluster", "Prove a Ray cluster before money is spent on it."),
    CommandEntry("train", "repairgym.cli.train", "Train a model: sft, rft, rl."),
    CommandEntry("verl", "repairgym.cli.verl", "Configurations and data sets of RL under verl."),
    CommandEntry("eval", "repairgym.cli.eval", "Measure Pass@1 and Pass@k, with their uncertainty."),
    CommandEntry("analyse", "repairgym.cli.reports", "Show how a run's policy behaves, in tables and figures."),
    CommandEntry("watch", "repairgym.cli.watch", "Look at a run while another process works on it."),
    CommandEntry("report", "repairgym.cli.reports", "Write the HTML report of a run folder, or compare runs."),
    CommandEntry("view", "repairgym.cli.reports", "Look at runs and trajectories in a web browser."),
)


class RepairGym(LazyGroup):
    """The root of all commands; the one place that ends a command with an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it raises becomes a message and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (KeyboardInterrupt, Exception) as error:
            if _is_parser_error(error):
                raise
            raise typer.Exit(_report(error, is_debug=bool(ctx.params.get("debug")))) from error


def _is_parser_error(error: BaseException) -> bool:
    # Usage errors and Exit: Typer shows them itself. Its parser is click or a copy of click, by version.
    return type(error).__module__.partition(".")[0] in ("click", "typer")


def _report(error: BaseException, *, is_debug: bool) -> int:
    """Say what happened; returns the exit code."""
    if isinstance(error, BrokenPipeError) and _is_output_gone():
        return BROKEN_PIPE
    known = find_repairgym_error(error)
    if known is None or is_debug:
        traceback.print_exception(error)
    if known is None:
        typer.secho("this is a bug in RepairGym; please report it with the lines above", fg="red", err=True)
        return BUG
    typer.secho(f"error: {' '.join(str(known).split())}", fg="red", err=True)
    return known.exit_code


def _is_output_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    # Python would complain once more when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def create_app(entries: Sequence[CommandEntry] = COMMANDS) -> typer.Typer:
    """The `repairgym` application over ``entries``."""
    app = typer.Typer(
        cls=type("RepairGymOver", (RepairGym,), {"entries": entries}),
        name="repairgym",
        no_args_is_help=True,
        add_completion=False,
        epilog=f"Exit codes: {', '.join(f'{row.code} {row.word}' for row in EXIT_CODES)} (docs/reference/exit-codes.md).",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"repairgym {__version__}")
        raise typer.Exit


def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="REPAIRGYM_DEBUG", help="Show the traceback of every error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Train agents that repair real code with reinforcement learning, and prove what they can do.

    Start with `repairgym doctor`, then `repairgym demo`. Every command has `--help` with an example.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run `repairgym` with ``args`` (default: the command line).

    Raises:
        SystemExit: always, with the exit code.
    """
    typer.main.get_command(create_app())(args=None if args is None else list(args), prog_name="repairgym")
