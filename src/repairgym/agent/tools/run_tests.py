"""The ``test`` tool: runs the tests that the agent may see.

Reads the workspace; makes one line that says how many failed and why. Equal states of equal tasks share one run
through the execution cache (tasks are certified deterministic), which is what makes a group of rollouts cheap.
"""

from __future__ import annotations

from typing import Self

from repairgym.agent.tools.base import NoArguments, Observation, Tool, ToolContext, ToolServices
from repairgym.records import TestOutcome, TestRun
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import task_request

MAX_MESSAGE_CHARS = 80


class RunTestsTool(Tool[NoArguments]):
    """``test``: run the visible tests."""

    name = "test"
    usage = "test - run the tests of the report"
    arguments_type = NoArguments

    def __init__(self, cache: ExecutionCache) -> None:
        self._cache = cache

    @classmethod
    def create(cls, services: ToolServices) -> Self:
        """Shares test runs with the other episodes of the process."""
        return cls(services.cache)

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Run the visible tests on the current state."""
        task = context.task
        request = task_request(task, task.visible_tests)
        key = (task.id, context.workspace.state_digest(), request.digest())

        async def execute() -> TestRun:
            sandbox = await context.workspace.sandbox()
            return await sandbox.run_tests(request)

        run = await self._cache.get_or_run(key, execute)
        context.num_test_runs += 1
        context.last_run = run
        return Observation(text=describe_run(run, task.visible_tests))


def describe_run(run: TestRun, test_ids: tuple[str, ...]) -> str:
    """One line: ``passed 3``, or how many failed and the first failure's message."""
    failed = [test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED]
    if not failed:
        return describe_pass(len(test_ids))
    if run.is_timed_out:
        return describe_failure(len(failed), len(test_ids), "timed out")
    result = run.results.get(failed[0])
    return describe_failure(len(failed), len(test_ids), result.message if result else "not run")


def describe_pass(num_tests: int) -> str:
    """The observation of a run in which all tests passed."""
    return f"passed {num_tests}"


def describe_failure(num_failed: int, num_tests: int, message: str) -> str:
    """The observation of a run with failures."""
    return f"failed {num_failed} of {num_tests}: {message[:MAX_MESSAGE_CHARS]}".rstrip(": ")
