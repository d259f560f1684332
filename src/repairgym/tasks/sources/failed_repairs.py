"""Combined bugs from failed repairs: code as a policy left it that changed more than was broken.

Reads a task with a synthetic bug and the files of a submission that failed it. Makes another task: the old bug together
with what the submission broke, and the same gold state. Guarantees: the new task is certified by fresh runs; it fails
other tests than the old one; a hidden test decides it; the agent's tree hides what it hid before.
"""

import ast
import hashlib
from collections.abc import Mapping

from repairgym.diffs.make import unified_diff
from repairgym.diffs.parse import num_changed_lines, num_edits
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.test_files import function_id
from repairgym.tasks.build.validation import gather_evidence, pinned_tree
from repairgym.tasks.issues.describing import failures_of
from repairgym.tasks.issues.localized import retold
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import Drop
from repairgym.tasks.synthetic import FAILED_REPAIR, NUM_BUGS, told_level


def combined_bug(task: Task, files: Mapping[str, str | None]) -> Task | Drop:
    """Return ``task`` as a submission with ``files`` left it, not certified yet, or why that is no other bug."""
    if task.source != "mutations" or task.location is None:
        return Drop("no_synthetic_bug", task.id)
    changed = {path: text for path, text in files.items() if path not in task.test_paths}
    if not changed or not changed.keys() <= task.gold_files.keys():
        return Drop("other_files", f"{task.id}: {', '.join(files) or 'no change'}")
    broken = {path: changed.get(path, task.base_files[path]) for path in task.gold_files}
    if not all(text is not None and _parses(text) for text in broken.values()):
        return Drop("does_not_parse", task.id)
    patch = unified_diff(broken, task.gold_files)
    if not patch or num_changed_lines(patch) <= num_changed_lines(task.gold_patch):
        return Drop("no_further_bug", f"{task.id}\n{patch}")
    digest = hashlib.sha256(patch.encode()).hexdigest()[:10]
    recipe = f"{task.provenance.recipe}\n{FAILED_REPAIR} {digest}"
    return task.model_copy(
        update={
            "id": f"{task.id}-{digest}",
            "provenance": task.provenance.model_copy(update={"recipe": recipe}),
            "base_files": {**task.base_files, **broken},
            "gold_patch": patch,
            "labels": {**task.labels, "operator": FAILED_REPAIR, "difficulty": str(num_edits(patch))},
        }
    )


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


async def certified(task: Task, store: LayerStore, backend: SandboxBackend, num_runs: int = 3) -> Task | Drop:
    """Return a `combined_bug` with its own lists of tests, issue and certificate, or the reason of its drop.

    Raises:
        SandboxError: the sandbox could not do its work.
        TaskError: the tree is not the one that the task was made from.
    """
    evidence = await gather_evidence(task, store, backend, num_runs)
    failing, passing, _ = evidence.split_tests(task.fail_to_pass + task.pass_to_pass)
    if not failing or not passing:
        return Drop("no_failing_test" if passing else "no_regression_test", evidence.empty[0].output_tail)
    if set(failing) == set(task.fail_to_pass):
        return Drop("same_failures", task.gold_patch)
    shown = {function_id(test_id) for test_id in task.visible_tests}
    hidden = {function_id(test_id) for test_id in task.fail_to_pass} - shown
    if not any(function_id(test_id) in hidden for test_id in failing):
        return Drop("no_hidden_test", task.gold_patch)
    told = retold(task, failures_of(evidence.empty[0], failing), told_level(task), pinned_tree(task, store))
    certificate = evidence.certificate(failing, passing)
    visible = tuple(test_id for test_id in task.visible_tests if test_id in (*failing, *passing))
    return told.model_copy(
        update={
            "fail_to_pass": failing,
            "pass_to_pass": passing,
            "visible_tests": visible,
            "certificate": certificate,
            "labels": {**told.labels, NUM_BUGS: "2"},
        }
    )
