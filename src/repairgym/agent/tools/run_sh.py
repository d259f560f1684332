"""The ``run_sh`` tool of paper A (appendix A.2): any command, with its exit status."""

from __future__ import annotations

from repairgym.agent.tools.base import Observation, tool_error
from repairgym.agent.tools.shell import ShellTool
from repairgym.sandbox.base import ExecResult

TIMEOUT_MARK = "tooltimeout"
"""What a tool that did not end in time answers (paper A, section on training: one hour per tool)."""


class RunShTool(ShellTool):
    """``run_sh``: like ``shell``, and it says how the command ended."""

    name = "run_sh"
    usage = "run_sh COMMAND - run a command in bash"

    def observe(self, result: ExecResult, output: str) -> Observation:
        """The exit status and the output."""
        if result.is_timed_out:
            note = f"{TIMEOUT_MARK}: the command did not end within {self._timeout_s:g} s"
            return tool_error(f"{note}\n{output}".rstrip())
        return Observation(text=f"exit status {result.exit_status}\n{output}".rstrip())
