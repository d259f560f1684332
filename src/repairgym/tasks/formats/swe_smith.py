"""SWE-smith records (arXiv:2504.21798): the patch puts the bug *in*; the gold patch is its reverse.

Repositories are mirrors named ``swesmith/OWNER__NAME.COMMIT``, so that owner, name and the first characters of the
commit are known without a field for them.
"""

from __future__ import annotations

import re

from repairgym.diffs.apply import reverse_patch
from repairgym.diffs.parse import PatchError
from repairgym.tasks.formats.base import Fields, RecordError, get_names, get_text, has
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask

_MIRROR = re.compile(r"(?:[^/]+/)?(?P<owner>[^/]+?)__(?P<name>[^/]+)\.(?P<commit>[0-9a-f]{7,40})")
_COMMIT_CHARACTERS = 8


class SweSmith:
    """Reads and writes rows of SWE-smith."""

    name: FormatName = "swe_smith"
    is_folder = False

    def matches(self, fields: Fields) -> bool:
        """An image, a patch, and no patch of tests: the tests are in the repository."""
        return has(fields, "instance_id", "patch", "repo", "image_name") and not has(fields, "test_patch")

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
        bug = get_text(fields, "patch", None)
        repo = get_text(fields, "repo", None)
        mirror = _MIRROR.fullmatch(repo)
        try:
            gold = reverse_patch(bug)
        except PatchError as error:
            raise RecordError(f"the field 'patch' cannot be reversed: {error}") from error
        return UnbuiltTask(
            id=get_text(fields, "instance_id", None),
            format=self.name,
            repository=f"{mirror['owner']}/{mirror['name']}" if mirror else repo,
            base_commit=get_text(fields, "base_commit") or (mirror["commit"] if mirror else ""),
            issue=get_text(fields, "problem_statement"),
            gold_patch=gold,
            bug_patch=bug,
            fail_to_pass=get_names(fields, "FAIL_TO_PASS"),
            pass_to_pass=get_names(fields, "PASS_TO_PASS"),
            created_at=get_text(fields, "created_at"),
            image=get_text(fields, "image_name"),
        )

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
        owner, _, name = task.repository.rpartition("/")
        commit = task.base_commit[:_COMMIT_CHARACTERS]
        mirror = f"swesmith/{owner}__{name}.{commit}" if owner and commit else task.repository
        try:
            bug = task.bug_patch or reverse_patch(task.gold_patch)
        except PatchError as error:
            raise RecordError(f"swe_smith needs the reverse of the gold patch: {error}") from error
        return {
            "instance_id": task.id,
            "patch": bug,
            "FAIL_TO_PASS": list(task.fail_to_pass),
            "PASS_TO_PASS": list(task.pass_to_pass),
            "image_name": task.image,
            "repo": mirror,
            "problem_statement": task.issue,
        }
