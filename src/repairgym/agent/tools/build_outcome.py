"""Build and test what an agent has made so far, and say the one main error (paper A: build, parse the log, pick one).

Reads the workspace; makes a `BuildOutcome`. Invariants: it runs in a sandbox of its own, so that what a build writes is
no part of the repair; it runs the tests that the agent may see and no others; equal states of a task share one run.
"""

from __future__ import annotations

from repairgym.agent.tools.workspace import Workspace
from repairgym.records import MainError, Record, StepResult, Task, TestRun
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.build_steps import check_results, run_build_steps, with_checks
from repairgym.tasks.build.validation import task_request
from repairgym.tasks.logs.main_error import first_test_error


class BuildOutcome(Record):
    """What came of one build."""

    steps: tuple[StepResult, ...]
    run: TestRun | None
    """None when a command of the build failed."""
    error: MainError | None
    """None: everything passed."""

    @property
    def is_passed(self) -> bool:
        """True when every step and every visible test passed."""
        return self.error is None

    @property
    def log(self) -> str:
        """What the step that failed printed; of tests, the end of their output."""
        failed = next((step for step in self.steps if not step.is_passed), None)
        return failed.log if failed else self.run.output_tail if self.run else ""


async def build_and_test(task: Task, workspace: Workspace, cache: ExecutionCache) -> BuildOutcome:
    """Build ``workspace`` and run the visible tests of ``task``.

    Raises:
        SandboxError: the sandbox could not do its work.
    """
    await workspace.refresh()
    key = ("build", task.id, workspace.state_digest())
    return await cache.get_or_run(key, lambda: _build_and_test(task, workspace))


async def _build_and_test(task: Task, workspace: Workspace) -> BuildOutcome:
    sources = {**task.base_files, **workspace.changes}
    sandbox = await workspace.copy()
    try:
        steps = await run_build_steps(sandbox, task, sources)
        if not all(step.is_passed for step in steps):
            return _outcome(task, steps, None)
        request = with_checks(task_request(task, task.visible_tests), task, sources)
        run = await sandbox.run_tests(request)
        return _outcome(task, (*steps, *check_results(request, run)), run)
    finally:
        await sandbox.close()


def _outcome(task: Task, steps: tuple[StepResult, ...], run: TestRun | None) -> BuildOutcome:
    error = next((step.main_error for step in steps if not step.is_passed), None)
    if error is None and run is not None and run.is_timed_out:
        error = MainError(error_class="test", message=f"the tests took longer than {task.timeout_s:g} s")
    if error is None and run is not None:
        error = first_test_error(run, task.visible_tests)
    return BuildOutcome(steps=steps, run=run, error=error)


def describe_error(error: MainError) -> str:
    """Class, place and message in one line."""
    place = f"{error.path}:{error.line}" if error.line else error.path
    return f"{error.error_class} error: {f'{place}: ' if place else ''}{error.message}"
