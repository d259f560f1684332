"""Tools that run commands: ``shell``, and paper A's ``run_sh`` (appendix A.2), which also gives the exit status.

Reads a command; makes its output, standard error behind standard output, cut in the middle when it is long. The shell
keeps its folder, variables and functions.
"""

from typing import Self

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, ToolServices, UsageError, tool_error
from repairgym.records import Record
from repairgym.sandbox.base import ExecResult


class ShellArguments(Record):
    """The command to run."""

    command: str = Field(description="one or more lines of bash; programs that wait for a person do not work")


class ShellTool(Tool[ShellArguments]):
    """``shell COMMAND``: run bash. A command that fails is an observation, not an error of the tool."""

    name = "shell"
    usage = "shell COMMAND - run a command in bash"
    arguments_type = ShellArguments
    is_refreshed = False

    def __init__(self, timeout_s: float, max_chars: int) -> None:
        """Limit one command: its time, and the characters of its output that are shown."""
        self._timeout_s = timeout_s
        self._max_chars = max_chars

    @classmethod
    def create(cls, services: ToolServices) -> Self:
        """Use the limits of the pipeline."""
        return cls(services.config.command_timeout_s, services.config.max_observation_chars)

    def read(self, text: str) -> ShellArguments:
        """Read the text as the command."""
        return ShellArguments(command=text)

    async def run(self, context: ToolContext, arguments: ShellArguments) -> Observation:
        """Run the command to its end or deadline."""
        if "\0" in arguments.command:
            raise UsageError("the command has a NUL character, which no shell can read")
        result = await context.workspace.run_command(arguments.command, timeout_s=self._timeout_s)
        return self.observe(result, describe_result(result, self._max_chars))

    def observe(self, result: ExecResult, output: str) -> Observation:
        """Return the observation of a command that printed ``output``."""
        if result.is_timed_out:
            note = f"the command did not end within {self._timeout_s:g} s and was stopped"
            return tool_error(f"{note}\n{output}".rstrip())
        return Observation(text=output)


def describe_result(result: ExecResult, max_chars: int) -> str:
    """Return the output of a command, and the limit or signal that ended it."""
    parts = [part.decode("utf-8", "replace").rstrip("\n") for part in (result.stdout, result.stderr)]
    lines = [cut_middle("\n".join(part for part in parts if part), max_chars)]
    if result.is_out_of_memory:
        lines.append("(out of memory)")
    if result.signal:
        lines.append(f"(killed by signal {result.signal})")
    return "\n".join(line for line in lines if line)


def cut_middle(text: str, max_chars: int) -> str:
    """Return ``text``, or its head and tail with a note between them when it is longer than ``max_chars``."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


TIMEOUT_MARK = "tooltimeout"
"""Answer of a tool that did not end in time (paper A, section on training: one hour per tool)."""


class RunShTool(ShellTool):
    """``run_sh``: ``shell`` with the exit status."""

    name = "run_sh"
    usage = "run_sh COMMAND - run a command in bash"

    def observe(self, result: ExecResult, output: str) -> Observation:
        """Return the exit status and the output."""
        if result.is_timed_out:
            note = f"{TIMEOUT_MARK}: the command did not end within {self._timeout_s:g} s"
            return tool_error(f"{note}\n{output}".rstrip())
        return Observation(text=f"exit status {result.exit_status}\n{output}".rstrip())
