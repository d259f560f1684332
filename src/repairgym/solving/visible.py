"""The visible view of a task: what a search may know of it.

Reads a task; makes a copy without hidden tests and without the repair. Guarantees: whoever has only the view can
neither run nor name a hidden test; its tests are in the agent's copy of the tree; `fail_to_pass` of the view are the
visible tests that fail before the repair.
"""

from typing import Any

from repairgym.errors import TaskError
from repairgym.records import Task
from repairgym.tasks.build.test_files import file_of, function_id, held_in


def visible_view(task: Task, *, is_gold_kept: bool = False) -> Task:
    """Return ``task`` as a search sees it: visible tests decide, and regression tests of the agent's own copy.

    ``is_gold_kept`` is for scripted policies, which play the repair; their results say nothing of a search.

    Raises:
        TaskError: it has no visible test, so nothing could be chosen by.
    """
    if not task.visible_tests:
        raise TaskError(f"{task.id} has no visible test; a search would have nothing to choose by")
    failing = tuple(test_id for test_id in task.visible_tests if test_id in task.fail_to_pass)
    passing = tuple(test_id for test_id in task.visible_tests if test_id not in task.fail_to_pass)
    changes: dict[str, Any] = {"fail_to_pass": failing, "pass_to_pass": (*passing, *_regression_tests(task))}
    if not is_gold_kept:
        # The paths stay: they decide which files a submission may change, and hold nothing of the repair.
        changes |= {"gold_files": {path: task.base_files.get(path) for path in task.gold_files}, "gold_patch": ""}
    return task.model_copy(update=changes)


def _regression_tests(task: Task) -> tuple[str, ...]:
    """Return the other tests of the agent's tree that pass before and after the repair."""
    return tuple(
        test_id for test_id in task.pass_to_pass if test_id not in task.visible_tests and _is_held(task, test_id)
    )


def _is_held(task: Task, test_id: str) -> bool:
    path, name = file_of(test_id), function_id(test_id).partition("::")[2]
    if path not in task.base_files:
        return bool(name)  # the file is as pinned: nothing was cut out of it
    return name in held_in(path, task.base_files[path] or "")
