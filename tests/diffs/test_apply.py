from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repairgym.diffs.apply import apply_patch, reverse_patch
from repairgym.diffs.make import unified_diff
from repairgym.diffs.parse import PatchError, changed_paths, parse_patch

TEXTS = st.one_of(
    st.none(), st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ z", "\\", "c\r"])).map("\n".join)
)


@given(before=st.dictionaries(st.sampled_from("pqr"), TEXTS), after=st.dictionaries(st.sampled_from("pqr"), TEXTS))
@settings(deadline=None)
def test_a_diff_applies_and_its_reverse_undoes_it(before: dict[str, str | None], after: dict[str, str | None]) -> None:
    # A diff cannot tell an empty file from none.
    before = {path: before.get(path) or None for path in "pqr"}
    after = {path: after.get(path) or None for path in "pqr"}
    patch = unified_diff(before, after)
    assert before | apply_patch(patch, before.get) == after
    assert after | apply_patch(reverse_patch(patch), after.get) == before
    changed = {path for path in "pqr" if before[path] != after[path]}
    assert set(changed_paths(patch)) == changed


def test_git_headers_renames_and_quoted_names() -> None:
    patch = (
        "diff --git a/old name.py b/new name.py\nsimilarity index 90%\nrename from old name.py\nrename to new name.py\n"
        "--- a/old name.py\t\n+++ b/new name.py\t\n@@ -1 +1 @@ def f\n-x\n+y\n"
        'diff --git "a/\\303\\244.py" "b/\\303\\244.py"\nnew file mode 100644\n--- /dev/null\n+++ "b/\\303\\244.py"\n'
        "@@ -0,0 +1 @@\n+z\n\\ No newline at end of file\n"
        "diff --git a/mode.sh b/mode.sh\nold mode 100644\nnew mode 100755\n"
    )
    first, second, third = parse_patch(patch)
    assert (first.old_path, first.new_path) == ("old name.py", "new name.py")
    assert (second.old_path, second.new_path) == (None, "ä.py")
    assert third.hunks == []
    files = {"old name.py": "x\n", "mode.sh": "m\n"}
    after = apply_patch(patch, files.get)
    assert after == {"old name.py": None, "new name.py": "y\n", "ä.py": "z", "mode.sh": "m\n"}
    assert apply_patch(reverse_patch(patch), after.get) == {
        "new name.py": None, "old name.py": "x\n", "ä.py": None, "mode.sh": "m\n"
    }  # fmt: skip


def test_a_stripped_context_line_and_a_last_line_without_end_are_read() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n\n-a\n+b"
    assert apply_patch(patch, {"x": "\na\n"}.get) == {"x": "\nb\n"}


@pytest.mark.parametrize(
    ("patch", "files", "message"),
    [
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", {"x": "c\n"}, "does not apply near line 1"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", {}, "no such text file"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", {"x": "c\n"}, "already there"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", {"x": "c"}, "is binary"),
    ],
)
def test_a_patch_that_does_not_fit_is_rejected(patch: str, files: dict[str, str | None], message: str) -> None:
    with pytest.raises(PatchError, match=message):
        apply_patch(patch, files.get)


def test_a_binary_patch_cannot_be_reversed() -> None:
    with pytest.raises(PatchError, match="cannot be reversed"):
        reverse_patch("diff --git a/x b/x\nBinary files a/x and b/x differ\n")
