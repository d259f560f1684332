from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

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
    before = {path: before.get(path) for path in "pqr"}
    after = {path: after.get(path) for path in "pqr"}
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


# --- as git applies it ------------------------------------------------------------------------------------------------

COPY = "diff --git a/a b/b\nsimilarity index 100%\ncopy from a\ncopy to b\n"
RENAME = "diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n"
RENAMES = RENAME + RENAME.replace("a/a b/b", "a/b b/a").replace("from a", "from b").replace("to b", "to a")
CHANGE = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n"
CHANGE_B = CHANGE.replace("a/a b/a", "a/b b/b").replace("- a/a", "- a/b").replace("+ b/a", "+ b/b")
TEN = "".join(f"{number}\n" for number in range(10))
BARE = "--- a/n\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
GIT_CASES = [
    (CHANGE + COPY, {"a": "one\n"}),
    (COPY + CHANGE, {"a": "one\n"}),
    (COPY + CHANGE_B, {"a": "one\n"}),
    (RENAMES, {"a": "1\n", "b": "2\n"}),
    (RENAMES + CHANGE, {"a": "1\n", "b": "one\n"}),
    (RENAME, {"a": "1\n", "b": "2\n"}),
    (CHANGE + RENAME, {"a": "one\n"}),
    (BARE, {}),
    (BARE, {"n": ""}),
    (BARE, {"n": "y\n"}),
    (BARE.replace("-0,0", "-1,0"), {}),
    (BARE + "@@ -1,0 +2 @@\n+y\n", {}),
    ("diff --git a/n b/n\n" + BARE, {}),
    (BARE.replace("@@ -0,0 +1 @@", "@@ -1 +1,2 @@\n y"), {}),
    ("--- a/n\n+++ b/n\n@@ -7 +7 @@\n-7\n+seven\n@@ -2,2 +2,2 @@\n 1\n-2\n+two\n", {"n": TEN}),
    ("--- a/n\n+++ b/n\n@@ -7,3 +7,3 @@\n 6\n-7\n+seven\n 8\n@@ -2,3 +2,3 @@\n 1\n-2\n+two\n 3\n", {"n": TEN}),
    ("--- a/n\n+++ b/n\n@@ -2,3 +2,3 @@\n 1\n-2\n+two\n 3\n@@ -4,3 +4,3 @@\n 3\n-4\n+four\n 5\n", {"n": TEN}),
    (unified_diff({}, {"e": ""}), {}),
    (unified_diff({"e": ""}, {}), {"e": ""}),
    (unified_diff({"e": ""}, {}), {"e": "x\n"}),
    (unified_diff({"f": "a\n", "z": ""}, {"e": "", "f": "b\n", "g/h": ""}), {"f": "a\n", "z": ""}),
    (reverse_patch(unified_diff({"f": "a\n", "z": ""}, {"e": "", "f": "b\n"})), {"e": "", "f": "b\n"}),
    (reverse_patch(RENAMES), {"a": "2\n", "b": "1\n"}),
]


def applied_by_git(folder: Path, patch: str, files: dict[str, str]) -> dict[str, str] | None:
    """Return the files after ``git apply``; None where it rejects the patch."""
    for path, text in files.items():
        (folder / path).write_text(text)
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=patch.encode(), capture_output=True)
    if done.returncode:
        return None
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize(("patch", "files"), GIT_CASES)
def test_a_patch_makes_what_git_makes_of_it(tmp_path: Path, patch: str, files: dict[str, str]) -> None:
    try:
        after = files | apply_patch(patch, files.get)
        ours = {path: text for path, text in after.items() if text is not None}
    except PatchError:
        ours = None
    assert ours == applied_by_git(tmp_path, patch, files)


def test_modes_survive_a_reversal_and_a_lone_name_is_left_out() -> None:
    patch = "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
    assert reverse_patch(patch) == "diff --git a/run b/run\nold mode 100755\nnew mode 100644\n"
    assert reverse_patch(reverse_patch(patch)) == patch
    assert reverse_patch("diff --git a/run b/run\nindex 1..2 100644\n") == ""
    added = "diff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
    assert "deleted file mode 100755" in reverse_patch(added)
    assert "new file mode 100755" in reverse_patch(reverse_patch(added))
