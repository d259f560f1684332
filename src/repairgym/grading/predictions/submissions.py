"""A submission's patch as the files it leaves behind.

Reads the text of a patch and the files it changes; makes the changed files. Invariant: what comes out can be graded,
so its size and every path are within the bounds of `grading.permitted`.
"""

from __future__ import annotations

from repairgym.diffs.apply import ReadFile, apply_patch
from repairgym.diffs.parse import PatchError, parse_patch
from repairgym.grading.permitted import MAX_SUBMISSION_BYTES, check_applicable


def apply_submission(patch: str, read: ReadFile) -> dict[str, str | None]:
    """The files that ``patch`` changes, as they are after it (None: deleted); empty for an empty patch.

    Raises:
        PatchError: the patch is larger than `MAX_SUBMISSION_BYTES`, is no diff, or does not apply.
    """
    num_bytes = len(patch.encode(errors="replace"))
    if num_bytes > MAX_SUBMISSION_BYTES:
        raise PatchError(f"the patch has {num_bytes} bytes, at most {MAX_SUBMISSION_BYTES} can be graded")
    if not patch.strip():
        return {}
    changes = parse_patch(patch)
    if not changes:
        raise PatchError("no diff in it: expected lines that start with 'diff --git' or '---' and '+++'")
    names = [path for one in changes for path in (one.old_path, one.new_path) if path is not None]
    # Before any of them is looked up.
    if reason := next(filter(None, (check_applicable({path: None}) for path in names)), ""):
        raise PatchError(reason)
    files = apply_patch(patch, read)
    if reason := check_applicable(files):
        raise PatchError(reason)
    return files
