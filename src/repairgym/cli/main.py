"""The `repairgym` command: assembles the commands of this folder and maps errors to exit codes.

A deliberate error (`repairgym.errors`) is one line on stderr and its exit code; anything else is a bug and shows its
traceback. No other module maps errors to exit codes.
"""

import errno
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
from repairgym.errors import InputError, Interrupted, RepairGymError, disk_full_error

BUG = 70
BROKEN_PIPE = 141


_UNUSABLE = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors of the operating system that the place of a file makes, not the code."""


class ExitCode(NamedTuple):
    """One row of the table of exit codes."""

    code: int
    word: str
    meaning: str
    remedy: str


EXIT_CODES = (
    ExitCode(0, "done", "done", "-"),
    ExitCode(1, "error", "something a person can act on went wrong", "the message says what to do"),
    ExitCode(
        2, "usage or configuration",
        "wrong usage or settings: unknown option or key, value of the wrong type, or values that do not fit the model, "
        "the machine or the tasks (a context beyond the positions, an unknown task id, a selection that is empty)",
        "`--help`, `--dry-run`",
    ),
    ExitCode(
        3, "unusable file or folder", "a file or folder that cannot be used (task file, run folder, model folder)",
        "check the path",
    ),
    ExitCode(
        4, "package index", "no package index or image registry answers, or what was asked for has gone from it",
        "`repairgym doctor`; set `PIP_INDEX_URL`",
    ),
    ExitCode(5, "sandbox", "the sandbox cannot do its work on this machine", "`repairgym doctor`"),
    ExitCode(
        6, "disk full", "the disk is full; what was written is intact",
        "free space, then the same command (`repairgym demo` with `--resume`)",
    ),
    ExitCode(
        7, "broken task", "a task is broken, uncertified or does not build, or no episode is left to learn from",
        "`repairgym tasks verify`, or the message",
    ),
    ExitCode(
        8, "model server", "a model server gave no usable reply, or rejected the request",
        "the message says which; `docs/howto/model.md`",
    ),
    ExitCode(
        9, "cluster", "a cluster cannot be reached, is too small, or a node of it does not fit",
        "`repairgym cluster check`; `docs/howto/cluster.md`",
    ),
    ExitCode(
        10, "not solved", "`repairgym solve` found no patch after which visible tests that failed pass",
        "a larger budget, another policy, or the message",
    ),
    ExitCode(BUG, "bug", "a bug in RepairGym; a traceback was printed", "please report it"),
    ExitCode(
        130, "interrupted", "interrupted by Ctrl-C; the run folder is intact",
        "the same command (`repairgym demo` with `--resume`)",
    ),
    ExitCode(BROKEN_PIPE, "broken pipe", "the reader of the output went away", "-"),
)  # fmt: skip
"""Shown by ``repairgym --help`` and in ``docs/reference/exit-codes.md``; each deliberate error has its code here."""


class CommandEntry(NamedTuple):
    """Place and purpose of a command."""

    name: str
    module: str
    """Module with a Typer ``app``, or with a function called ``name`` (dashes as underscores)."""
    summary: str
    alias_of: str = ""
    """Command that this hidden name stands for."""


class LazyCommand(TyperCommand):
    """Stands for a command in listings; becomes the real one when its arguments are parsed."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.summary, rich_help_panel=None, hidden=bool(entry.alias_of))
        self._entry = entry

    def load(self) -> Any:
        """Return the real command (a group where the module has several)."""
        module = import_module(self._entry.module)
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False)
            app.command(name=self.name)(getattr(module, self._entry.alias_of or self._entry.name))
        command = typer.main.get_command(app)
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse ``args`` with the real command."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """A group over `CommandEntry` rows, which subclasses set as ``entries``.

    Listing commands, suggesting them and completing their names import none of their modules.
    """

    entries: Sequence[CommandEntry] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = {entry.name: LazyCommand(entry) for entry in self.entries if find_spec(entry.module)}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands whose modules exist, in the order of the table."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command named by ``args``; ``help COMMAND`` is its ``--help``."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                typer.echo(ctx.get_help())
                raise typer.Exit
        return super().resolve_command(ctx, args)


COMMANDS = (
    CommandEntry("demo", "repairgym.cli.demo", "Run the whole loop on this machine and write its report."),
    CommandEntry("doctor", "repairgym.cli.doctor", "Check this machine and say how to fix what is missing."),
    CommandEntry("config", "repairgym.cli.config", "Show and explain every setting; list the shipped presets."),
    CommandEntry("tasks", "repairgym.cli.tasks", "Build, verify and show validated repair tasks."),
    CommandEntry("layers", "repairgym.cli.layers", "Pull container images into the layer store, without an engine."),
    CommandEntry("grade", "repairgym.cli.grade", "Grade the patches of any agent against tasks."),
    CommandEntry("rollout", "repairgym.cli.episodes", "Run a policy on tasks and grade its submissions."),
    CommandEntry("solve", "repairgym.cli.solve", "Search for one patch within a budget, and show why it was chosen."),
    CommandEntry("scaffolds", "repairgym.cli.episodes", "Check each pipeline with an oracle and a do-nothing agent."),
    CommandEntry("knowledge", "repairgym.cli.knowledge", "Fill and query the knowledge base of past fixes."),
    CommandEntry("serve", "repairgym.cli.serve", "Serve a model or a script to any agent."),
    CommandEntry("serve-tasks", "repairgym.cli.serve_tasks", "Serve tasks to agents and trainers that call tools."),
    CommandEntry("acp", "repairgym.cli.acp", "Repair the folder of an editor that speaks the Agent Client Protocol."),
    CommandEntry("replay", "repairgym.cli.episodes", "Replay stored episodes in new sandboxes and compare."),
    CommandEntry("trajectories", "repairgym.cli.trajectories", "Export and import trajectories of other systems."),
    CommandEntry("models", "repairgym.cli.models", "Stretch the context of a model."),
    CommandEntry("plan", "repairgym.cli.plan", "Estimate memory and time of RL on given machines."),
    CommandEntry("cluster", "repairgym.cli.cluster", "Check a Ray cluster before a run."),
    CommandEntry("train", "repairgym.cli.train", "Train a model: sft, rft, rl, whole recipes."),
    CommandEntry("verl", "repairgym.cli.verl", "Write configurations and data sets for RL under verl."),
    CommandEntry("eval", "repairgym.cli.eval", "Measure Pass@1 and Pass@k, with their uncertainty."),
    CommandEntry("sweep", "repairgym.cli.sweep", "Search settings at random, or compare arms, as child runs."),
    CommandEntry("analyze", "repairgym.cli.reports", "Show how a run's policy behaves, in tables and figures."),
    CommandEntry("analyse", "repairgym.cli.reports", "The same as `analyze`.", alias_of="analyze"),
    CommandEntry("watch", "repairgym.cli.watch", "Watch a run while another process works on it."),
    CommandEntry("report", "repairgym.cli.reports", "Write the HTML report of a run folder, or compare runs."),
    CommandEntry("view", "repairgym.cli.reports", "Browse runs and trajectories in a web browser."),
)


class RepairGym(LazyGroup):
    """The root of all commands; only it ends a command with an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an exception becomes a message and an exit code."""
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
    """Print the error; return its exit code."""
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


def find_repairgym_error(error: BaseException) -> RepairGymError | None:
    """Return the deliberate error behind ``error``: itself, a member of an exception group, or a full disk (errno)."""
    if isinstance(error, RepairGymError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            "interrupted; what a run folder holds is kept, and the command that works on it resumes there "
            "(repairgym demo: with --resume)"
        )
    if isinstance(error, BaseExceptionGroup):
        known = (find_repairgym_error(member) for member in error.exceptions)
        return next((member for member in known if member), None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full_error(error.filename or "the run folder")
    if isinstance(error, _UNUSABLE) and error.filename is not None:
        return InputError(f"cannot use {error.filename}: {error.strerror} (repairgym --debug shows where)")
    return None


def _is_output_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    # Python would complain once more when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def create_app(entries: Sequence[CommandEntry] = COMMANDS) -> typer.Typer:
    """Return the `repairgym` application over ``entries``."""
    codes = ", ".join(f"{row.code} {row.word}" for row in EXIT_CODES)
    app = typer.Typer(
        cls=type("RepairGymOver", (RepairGym,), {"entries": entries}),
        name="repairgym",
        no_args_is_help=True,
        epilog=f"Exit codes: {codes} (docs/reference/exit-codes.md).",
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train agents that repair real code with reinforcement learning, and prove what they can do.

    Start with `repairgym doctor`, then `repairgym demo`. Every command has `--help` with an example.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run `repairgym` with ``args`` (default: the command line) and exit with its code."""
    typer.main.get_command(create_app())(args=None if args is None else list(args), prog_name="repairgym")
