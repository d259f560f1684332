"""Checks of broken builds: their tests are a build (``data/build_check``).

Reads the shipped check files. Makes requests and tasks. Guarantees: the pinned tree holds the check in `CHECK_FOLDER`,
and grading restores every file of it.
"""

import json
import random
from importlib import resources

from repairgym.records import Task, TestRequest
from repairgym.tasks.build.assembly import Bug, assemble, build_issue
from repairgym.tasks.build.validation import Evidence
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.sources.base import BuildContext

CHECK_FOLDER = "repairgym_build"
BUILD_TEST, DEPENDENCY_TEST = f"{CHECK_FOLDER}/test_build.py", f"{CHECK_FOLDER}/test_dependencies.py"
WHEEL_TEST = f"{DEPENDENCY_TEST}::test_a_wheel_can_be_built"
EXPECTED_FILE, SUITE_FILE = f"{CHECK_FOLDER}/expected.json", f"{CHECK_FOLDER}/suite.json"


def check_text(path: str) -> str:
    """Return the text of a shipped check file, `BUILD_TEST` or `DEPENDENCY_TEST`."""
    name = path.rpartition("/")[2]
    return resources.files("repairgym").joinpath("data", "build_check", name).read_text("utf-8")


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
    """Give ``task`` the deadline of a build; grading restores the check and its suite."""
    suite = json.loads(task.pinned_files[SUITE_FILE])["tests"] if SUITE_FILE in task.pinned_files else []
    paths = tuple(sorted({*task.test_paths, *task.pinned_files, *suite}))
    return task.model_copy(update={"test_timeout_s": max_build_s, "timeout_s": max_build_s, "test_paths": paths})
