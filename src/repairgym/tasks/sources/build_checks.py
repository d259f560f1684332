"""Tasks whose tests check a build: that of a wheel (`wheel_check`) or of a Java library (`java/project`).

Makes requests, first builds and tasks. Guarantees: the pinned tree holds the check, and grading restores every file of
it.
"""

import json
import random
from collections.abc import Awaitable, Callable, Sequence

from repairgym.records import Task, TestRequest
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, assemble, build_issue
from repairgym.tasks.build.release_facts import check_files
from repairgym.tasks.build.validation import Evidence
from repairgym.tasks.build.wheel_check import DEPENDENCY_TEST, SUITE_FILE
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.mutation.settings_operators import SettingsEdit
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult

WHEEL_TEST = f"{DEPENDENCY_TEST}::test_a_wheel_can_be_built"


async def first_build(
    package: Package, context: BuildContext, spec: SandboxSpec, command: tuple[str, ...]
) -> str | Drop:
    """Return what the ``command`` that runs the check as a program prints; the reason of a drop if it fails."""
    sandbox = await context.backend.create(spec)
    try:
        done = await sandbox.exec(command, timeout_s=context.config.breakages.max_build_s)
    finally:
        await sandbox.close()
    if done.exit_status != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")
        return Drop("does_not_build", f"{package.name} {package.version}\n{output}")
    return done.stdout.decode()


async def try_edits(
    edits: Sequence[SettingsEdit],
    try_edit: Callable[[SettingsEdit], Awaitable[Task | Drop]],
    context: BuildContext,
    result: SourceResult,
) -> None:
    """Add the outcomes of edits to ``result``, until there are tasks enough or ``breakages.num_tries`` are used up."""
    result.funnel["edits"] += len(edits)
    for edit in edits[: context.config.breakages.num_tries]:
        if len(result.tasks) >= context.quota:
            break
        result.funnel["edits_run"] += 1
        result.add(await try_edit(edit))


def build_request(package: Package, context: BuildContext, path: str) -> TestRequest:
    """Return a request for all tests of the check ``path``."""
    bound = context.config.breakages.max_build_s
    request = context.request(package, (path,), bound)
    return request.model_copy(update={"test_timeout_s": bound, "plugins": ()})


def build_task(bug: Bug, evidence: Evidence, recipe: str, context: BuildContext) -> Task:
    """Return the task of a broken build; its issue is the first line of the failure."""
    reported = bug.visibility.reported or bug.fail_to_pass[0]
    issue = build_issue(bug.project.name, evidence.empty[0].results[reported].message, random.Random(recipe))
    return with_check(assemble(bug, issue, context.config, len(bug.pass_to_pass)), context.config.breakages.max_build_s)


def with_check(task: Task, max_build_s: float) -> Task:
    """Give ``task`` the deadline of a build, and its agent no plain expectations; grading restores the whole check."""
    suite = json.loads(task.pinned_files[SUITE_FILE])["tests"] if SUITE_FILE in task.pinned_files else []
    paths = tuple(sorted({*task.test_paths, *task.pinned_files, *suite}))
    # What is cut out of the check of this task stays cut.
    base_files = {**check_files(task.pinned_files), **task.base_files}
    bounds = {"test_timeout_s": max_build_s, "timeout_s": max_build_s}
    return task.model_copy(update={**bounds, "test_paths": paths, "base_files": base_files})
