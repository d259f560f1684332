"""The ``run_sh`` tool of paper A (appendix A.2): any command, with its exit status."""

from __future__ import annotations

from mendwright.tools.base import Observation, ToolContext, UsageError, tool_error
from mendwright.tools.shell import ShellArguments, ShellTool, describe_result

TIMEOUT_MARK = "tooltimeout"
"""What a tool that did not end in time answers (paper A, section on training: one hour per tool)."""


class RunShTool(ShellTool):
    """``run_sh``: like ``shell``, and it says how the command ended."""

    name = "run_sh"
    usage = "run_sh COMMAND - run a command in bash"

    async def run(self, context: ToolContext, arguments: ShellArguments) -> Observation:
        """Run the command to its end or deadline."""
        if "\0" in arguments.command:
            raise UsageError("the command has a NUL character, which no shell can read")
        result = await context.workspace.run_command(arguments.command, timeout_s=self._timeout_s)
        output = describe_result(result, self._max_chars)
        if result.is_timed_out:
            return tool_error(
                f"{TIMEOUT_MARK}: the command did not end within {self._timeout_s:g} s\n{output}".rstrip()
            )
        return Observation(text=f"exit status {result.exit_status}\n{output}".rstrip())
