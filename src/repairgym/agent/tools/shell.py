"""Tools that run commands: ``shell``, and paper A's ``run_sh`` (appendix A.2), which also gives the exit status.

Reads a command; makes its output, standard error behind standard output, cut in the middle when it is long. The shell
keeps its folder, variables and functions.
"""

from typing import ClassVar

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, UsageError, tool_error
from repairgym.records import Record
from repairgym.sandbox.base import ExecResult


class ShellArguments(Record):
    """The command to run."""

    command: str = Field(description="one or more lines of bash; programs that wait for a person do not work")


class ShellTool(Tool[ShellArguments]):
    """``shell COMMAND``: run bash. A command that fails is an observation, not an error of the tool."""

    name = "shell"
    usage = "shell COMMAND - run a command in bash"
    is_refreshed = False
    timeout_note: ClassVar[str] = "the command did not end within {:g} s and was stopped"

    def read(self, text: str) -> ShellArguments:
        """Read the text as the command."""
        return ShellArguments(command=text)

    async def run(self, context: ToolContext, arguments: ShellArguments) -> Observation:
        """Run the command to its end or deadline."""
        if "\0" in arguments.command:
            raise UsageError("the command has a NUL character, which no shell can read")
        config = self.services.config
        result = await context.workspace.run_command(arguments.command, timeout_s=config.command_timeout_s)
        output = describe_result(result, config.max_observation_chars)
        if result.is_timed_out:
            return tool_error(f"{self.timeout_note.format(config.command_timeout_s)}\n{output}".rstrip())
        return Observation(text=self.shown(result, output))

    def shown(self, result: ExecResult, output: str) -> str:
        """Return the observation of a command that printed ``output``."""
        return output


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
    timeout_note = f"{TIMEOUT_MARK}: the command did not end within {{:g}} s"

    def shown(self, result: ExecResult, output: str) -> str:
        """Return the exit status and the output."""
        return f"exit status {result.exit_status}\n{output}".rstrip()
