"""Tools that check and hand in: ``test``, ``validate_and_build`` (paper A, appendix A.2) and ``submit``.

``test`` makes one line that says how many visible tests failed and why; ``validate_and_build`` builds, tests and names
the one main error (paper A: build, parse the log, pick one). Guarantees: builds run in a sandbox of their own, so that
what a build writes is no part of the repair; only the tests that the agent may see run; equal states of a task share
one run through the execution cache, which makes a group of rollouts cheap (tasks are certified deterministic), and
``test``, which runs in the episode's own sandbox, only where the same commands ran there before; the time of a run that
another episode executes is a wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar, cast

from repairgym.agent.tools.base import NoArguments, Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.shell import TIMEOUT_MARK, cut_middle
from repairgym.agent.tools.workspace import Workspace
from repairgym.records import MainError, Record, StepResult, Task, TestOutcome, TestRun
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.cache import ExecutionCache, Key
from repairgym.tasks.build.build_steps import check_results, run_build_steps, with_checks
from repairgym.tasks.build.validation import task_request
from repairgym.tasks.logs.main_error import distinct_errors, errors_of_tests, parse_errors

ResultT = TypeVar("ResultT")


class BuildOutcome(Record):
    """The outcome of one build."""

    steps: tuple[StepResult, ...]
    run: TestRun | None
    """None when a command of the build failed."""
    errors: tuple[MainError, ...]
    """Distinct errors, the main one first; empty: everything passed."""
    is_late: bool = False
    """The build did not end in the time of a command."""

    @property
    def error(self) -> MainError | None:
        """The main error; None: everything passed."""
        return next(iter(self.errors), None)

    @property
    def log(self) -> str:
        """Output of the failed step; of tests, the end of their output."""
        failed = next((step for step in self.steps if not step.is_passed), None)
        return failed.log if failed else self.run.output_tail if self.run else ""


async def build_and_test(
    task: Task, workspace: Workspace, cache: ExecutionCache, timeout_s: float | None = None
) -> BuildOutcome:
    """Build ``workspace`` and run the visible tests of ``task``; equal states share one run.

    ``timeout_s`` bounds the build alone: starts of sandboxes and runs of other episodes are waits.
    """
    await workspace.refresh()
    copies: list[Sandbox] = []

    async def copy() -> Sandbox:
        copies.append(await workspace.copy())
        return copies[-1]

    async def build(sandbox: Sandbox) -> BuildOutcome:
        try:
            async with asyncio.timeout(timeout_s):
                return await _build_and_test(task, workspace, sandbox)
        except TimeoutError:
            return BuildOutcome(steps=(), run=None, errors=(), is_late=True)

    try:
        key = ("build", task.id, workspace.state_digest())
        return await _run_once(workspace, cache, key, copy, build)
    finally:
        for sandbox in copies:
            await sandbox.close()


async def _build_and_test(task: Task, workspace: Workspace, sandbox: Sandbox) -> BuildOutcome:
    sources = {**task.base_files, **workspace.changes}
    steps = await run_build_steps(sandbox, task, sources)
    run = None
    if all(step.is_passed for step in steps):
        request = with_checks(task_request(task, task.visible_tests), task, sources)
        run = await sandbox.run_tests(request)
        steps += check_results(request, run)
    return _outcome(task, steps, run)


async def _run_once(
    workspace: Workspace,
    cache: ExecutionCache,
    key: Key,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    execute: Callable[[Sandbox], Awaitable[ResultT]],
) -> ResultT:
    """Return the cached result of ``key``, or that of ``execute``; count the time before that as a wait.

    Whoever runs it has its sandbox before others wait for the run: they may hold all places.
    """
    with workspace.waiting():
        while key in cache:
            if (known := await cache.wait_for(key)) is not None:
                return cast(ResultT, known)
    sandbox = await open_sandbox()  # counts its own waits

    async def execute_here() -> ResultT:
        waited.close()
        return await execute(sandbox)

    with ExitStack() as waited:
        waited.enter_context(workspace.waiting())
        return await cache.get_or_run(key, execute_here)


def _outcome(task: Task, steps: tuple[StepResult, ...], run: TestRun | None) -> BuildOutcome:
    failed = next((step for step in steps if not step.is_passed), None)
    errors: tuple[MainError, ...] = ()
    if failed is not None and failed.main_error is not None:
        others = () if failed.is_timed_out else parse_errors(failed.log)
        errors = distinct_errors((failed.main_error, *others))
    elif run is not None and run.is_timed_out:
        errors = (MainError(error_class="test", message=f"the tests took longer than {task.timeout_s:g} s"),)
    elif run is not None:
        errors = errors_of_tests(run, task.visible_tests)
    return BuildOutcome(steps=steps, run=run, errors=errors)


def describe_error(error: MainError) -> str:
    """Return class, place and message in one line."""
    place = f"{error.path}:{error.line}" if error.line else error.path
    return f"{error.error_class} error: {f'{place}: ' if place else ''}{error.message}"


class ValidateAndBuildTool(Tool[NoArguments]):
    """``validate_and_build``: build and run the visible tests; passing changes are submitted."""

    name = "validate_and_build"
    usage = "validate_and_build - build the project, run its tests, show the main error"
    is_check = True

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Build and test in a fresh sandbox."""
        config = self.services.config
        limit_s = config.command_timeout_s
        outcome = await build_and_test(context.task, context.workspace, self.services.cache, limit_s)
        if outcome.is_late:
            return tool_error(f"{TIMEOUT_MARK}: the build did not end within {limit_s:g} s")
        context.tested_files = context.workspace.state_digest() if outcome.run else context.tested_files
        text = describe_outcome(outcome, context.task.visible_tests, config.max_observation_chars)
        return Observation(text=text, is_final=outcome.error is None and bool(context.workspace.changes))


def describe_outcome(outcome: BuildOutcome, test_ids: tuple[str, ...], max_chars: int) -> str:
    """Describe the passed steps, or the failed one with the main error and the log."""
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


MAX_MESSAGE_CHARS = 80


class RunTestsTool(Tool[NoArguments]):
    """``test``: run the visible tests."""

    name = "test"
    usage = "test - run the tests of the report"
    is_check = True

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """Run the visible tests on the current state."""
        task = context.task
        request = task_request(task, task.visible_tests)
        workspace = context.workspace
        files = workspace.state_digest()
        key = (task.id, workspace.execution_digest(), request.digest())
        run = await _run_once(
            workspace, self.services.cache, key, workspace.sandbox, lambda sandbox: sandbox.run_tests(request)
        )
        context.tested_files = files
        return Observation(text=describe_run(run, task.visible_tests))


def describe_run(run: TestRun, test_ids: tuple[str, ...]) -> str:
    """Return one line: ``passed 3``, or the number of failures and the first failure's message."""
    failed = [test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED]
    if not failed:
        return describe_pass(len(test_ids))
    if run.is_timed_out:
        return describe_failure(len(failed), len(test_ids), "timed out")
    result = run.results.get(failed[0])
    return describe_failure(len(failed), len(test_ids), result.message if result else "not run")


def describe_pass(num_tests: int) -> str:
    """Return the observation of a run in which all tests passed."""
    return f"passed {num_tests}"


def describe_failure(num_failed: int, num_tests: int, message: str) -> str:
    """Return the observation of a run with failures."""
    return f"failed {num_failed} of {num_tests}: {message[:MAX_MESSAGE_CHARS]}".rstrip(": ")


class SubmitTool(Tool[NoArguments]):
    """``submit``: submit the current state."""

    name = "submit"
    usage = "submit - hand in the repair and end"

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """End the episode."""
        return Observation(text="submitted", is_final=True)
