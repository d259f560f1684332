"""Shell lines that run a task's tests in a container: what folders of tasks need besides their data.

Reads `UnbuiltTask` records; makes text for bash. Invariants: every file that decides is put back first, whatever was
done to it, and tests are asked for by name. There is no judgement in the container: what our grader sees (skipped
tests, a forged report) these lines do not.
"""

from __future__ import annotations

import shlex

from repairgym.diffs.parse import PatchError, changed_paths
from repairgym.tasks.formats.base import RecordError
from repairgym.tasks.unbuilt import UnbuiltTask

WORK_FOLDER = "/testbed"
"""Where images of SWE-bench and its descendants have the repository."""
_PYTEST = "python -m pytest -q -rA -p no:cacheprovider"


def restore_lines(task: UnbuiltTask) -> str:
    """Put the test files back to the base commit, and remove those that the patch of tests adds.

    Raises:
        RecordError: the patch of tests cannot be read.
    """
    try:
        patched = changed_paths(task.test_patch)
    except PatchError as error:
        raise RecordError(f"a container needs a patch of tests that can be read: {error}") from error
    names = (name.partition("::")[0] for name in task.fail_to_pass + task.pass_to_pass if "::" in name)
    paths = " ".join(map(shlex.quote, sorted({*patched, *names})))
    commit = shlex.quote(task.base_commit or "HEAD")
    loop = f'for path in {paths}; do\n  git checkout -q {commit} -- "$path" 2>/dev/null || rm -f "$path"\ndone\n'
    return f"cd {WORK_FOLDER}\n{loop if paths else ''}"


def command_of(task: UnbuiltTask) -> str:
    """The command that test names are appended to: the record's own, or pytest."""
    return task.test_command or _PYTEST


def dockerfile(task: UnbuiltTask) -> dict[str, str]:
    """The image to start from, and the patch that puts the bug in where the image has the code without it."""
    text = f"FROM {task.image}\nWORKDIR {WORK_FOLDER}\n"
    if not task.bug_patch:
        return {"Dockerfile": text}
    text += "COPY bug.patch /tmp/bug.patch\nRUN git apply --whitespace=nowarn /tmp/bug.patch && rm /tmp/bug.patch\n"
    return {"Dockerfile": text, "bug.patch": task.bug_patch}
