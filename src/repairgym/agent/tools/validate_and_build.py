"""The ``validate_and_build`` tool of paper A (appendix A.2): build, test, and the main error when something fails."""

from __future__ import annotations

import asyncio
from typing import Self

from repairgym.agent.tools.base import NoArguments, Observation, Tool, ToolContext, ToolServices, tool_error
from repairgym.agent.tools.build_outcome import BuildOutcome, build_and_test, describe_error
from repairgym.agent.tools.run_sh import TIMEOUT_MARK
from repairgym.agent.tools.shell import cut_middle
from repairgym.records import TestOutcome
from repairgym.sandbox.cache import ExecutionCache


class ValidateAndBuildTool(Tool[NoArguments]):
    """``validate_and_build``: is it repaired, as far as an agent may know? Changes that pass are handed in."""

    name = "validate_and_build"
    usage = "validate_and_build - build the project, run its tests, show the main error"
    arguments_type = NoArguments

    def __init__(self, cache: ExecutionCache, timeout_s: float, max_chars: int) -> None:
        self._cache = cache
        self._timeout_s = timeout_s
        self._max_chars = max_chars

    @classmethod
    def create(cls, services: ToolServices) -> Self:
        """With the bounds of the pipeline."""
        return cls(services.cache, services.config.command_timeout_s, services.config.max_observation_chars)

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Build and test in a fresh sandbox."""
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await build_and_test(context.task, context.workspace, self._cache)
        except TimeoutError:
            return tool_error(f"{TIMEOUT_MARK}: the build did not end within {self._timeout_s:g} s")
        context.num_test_runs += outcome.run is not None
        context.last_run = outcome.run or context.last_run
        text = describe_outcome(outcome, context.task.visible_tests, self._max_chars)
        return Observation(text=text, is_final=outcome.is_passed and bool(context.workspace.changes))


def describe_outcome(outcome: BuildOutcome, test_ids: tuple[str, ...], max_chars: int) -> str:
    """What passed, or where it failed with the main error and the log."""
    steps = ", ".join(step.kind for step in outcome.steps) or "nothing to build"
    if outcome.error is None:
        return f"build passed ({steps}), tests passed {len(test_ids)}"
    failed = next((step for step in outcome.steps if not step.is_passed), None)
    if failed is not None or outcome.run is None:
        head = f"build failed at {failed.kind if failed else 'the start'}"
    else:
        num_failed = sum(outcome.run.outcome(test_id) is not TestOutcome.PASSED for test_id in test_ids)
        head = f"build passed ({steps}), tests failed {num_failed} of {len(test_ids)}"
    lines = [head, f"main error: {describe_error(outcome.error)}", cut_middle(outcome.log.strip(), max_chars)]
    return "\n".join(line for line in lines if line)
