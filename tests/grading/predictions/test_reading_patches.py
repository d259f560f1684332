"""Submitted patches: what `git apply` takes applies with the same result, what it refuses does not apply."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repairgym.diffs.make import FileVersion, make_diff, unified_diff
from repairgym.diffs.parse import PatchError
from repairgym.grading.predictions.reading import apply_submission

TEXT = "".join(f"line {number}\n" for number in range(1, 21))
FILES = {"m.py": TEXT, "pkg/a b.py": "one\ntwo\n", "pkg/é.py": "x\n", "crlf.py": "a\r\nb\r\n", "end.py": "no newline"}


def patched(patch: str, files: dict[str, str] | None = None) -> dict[str, str | None]:
    return apply_submission(patch, (FILES if files is None else files).get)


def diff_of(before: dict[str, str | None], after: dict[str, str | None]) -> str:
    def version(text: str | None) -> FileVersion:
        return FileVersion("") if text is None else FileVersion("file", 0o644, len(text.encode("utf-8")), text.encode())

    paths = sorted(before.keys() | after.keys())
    return make_diff([(path, version(before.get(path)), version(after.get(path))) for path in paths]).text


@pytest.mark.parametrize(
    "after",
    [
        {"m.py": TEXT.replace("line 7\n", "seven\n").replace("line 20\n", "")},
        {"m.py": None},
        {"new/deep.py": "x = 1\n", "m.py": TEXT + "more\n"},
        {"pkg/a b.py": "one\n", "pkg/é.py": "y\n"},
        {"crlf.py": "a\r\nc\r\n", "end.py": "no newline\n"},
        {"end.py": "still none"},
    ],
)
@pytest.mark.parametrize("make", [diff_of, unified_diff])
def test_a_diff_restores_its_source(after, make):
    before = {path: FILES.get(path) for path in after}
    assert patched(make(before, after)) == after


def test_an_empty_file_has_a_header_and_no_hunk():
    assert patched(diff_of({"empty.py": None}, {"empty.py": ""})) == {"empty.py": ""}
    assert apply_submission(diff_of({"empty.py": ""}, {"empty.py": None}), {"empty.py": ""}.get) == {"empty.py": None}


def test_an_empty_patch_changes_nothing():
    assert patched("") == patched("\n \n") == {}


def test_renames_copies_and_modes():
    patch = (
        "diff --git a/m.py b/moved.py\nsimilarity index 90%\nrename from m.py\nrename to moved.py\n"
        "--- a/m.py\n+++ b/moved.py\n@@ -1,2 +1,2 @@\n-line 1\n+first\n line 2\n"
        "diff --git a/end.py b/copy.py\nsimilarity index 100%\ncopy from end.py\ncopy to copy.py\n"
        "diff --git a/crlf.py b/crlf.py\nold mode 100644\nnew mode 100755\n"
    )
    assert patched(patch) == {
        "m.py": None,
        "moved.py": TEXT.replace("line 1\n", "first\n", 1),
        "copy.py": "no newline",
        "crlf.py": FILES["crlf.py"],
    }


def test_a_hunk_may_have_moved_but_must_match_exactly():
    patch = "--- a/m.py\n+++ b/m.py\n@@ -4,3 +4,3 @@\n line 9\n-line 10\n+ten\n line 11\n"
    assert patched(patch)["m.py"] == TEXT.replace("line 10\n", "ten\n")
    with pytest.raises(PatchError, match="hunk 1 of 1 does not apply near line 4"):
        patched(patch.replace("line 11", "line eleven"))


def test_text_around_a_diff_and_stripped_context_are_taken():
    files = {"a.py": "x\n\ny\n"}
    patch = "Here is the patch:\n```diff\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n x\n\n-y\n+z\n```\nDone."
    assert apply_submission(patch, files.get) == {"a.py": "x\n\nz\n"}


def test_changes_of_one_file_follow_each_other():
    one = unified_diff({"m.py": TEXT}, {"m.py": TEXT.replace("line 3\n", "three\n")})
    both = TEXT.replace("line 3\n", "three\n").replace("line 12\n", "twelve\n")
    two = unified_diff({"m.py": TEXT.replace("line 3\n", "three\n")}, {"m.py": both})
    assert patched(one + two) == {"m.py": both}


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("just words", "no diff in it"),
        ("@@ -1 +1 @@\n-a\n+b\n", "without a file name"),
        ("--- a/m.py\n+++ b/m.py\n", "no hunk for m.py"),
        ("--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n-line 1\n", "in the middle of a hunk"),
        ("--- a/m.py\n+++ b/m.py\n@@ -1,1 +1,1 @@\n-line 1\n*what\n", "expected ' ', '\\+' or '-'"),
        ("--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-a\n+b\n", "gone.py: no such text file"),
        ("--- /dev/null\n+++ b/m.py\n@@ -0,0 +1 @@\n+a\n", "m.py: is already there"),
        ("--- a/end.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-no newline\n", "does not apply"),
        ("diff --git a/x.bin b/x.bin\nnew file mode 100644\nGIT binary patch\nliteral 3\n", "is binary"),
        ("diff --git a/m.py b/m.py\nBinary files a/m.py and b/m.py differ\n", "is binary"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "is a link"),
        ("--- /dev/null\n+++ b/../../etc/x.py\n@@ -0,0 +1 @@\n+a\n", "below the repository"),
        ("--- /dev/null\n+++ b//etc/x.py\n@@ -0,0 +1 @@\n+a\n", "below the repository"),
        ("--- /dev/null\n+++ b/a\0b\n@@ -0,0 +1 @@\n+a\n", "below the repository"),
        ('--- /dev/null\n+++ "b/\\377.py"\n@@ -0,0 +1 @@\n+a\n', "not UTF-8"),
        (
            "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+a\n--- /dev/null\n+++ b/a/b\n@@ -0,0 +1 @@\n+a\n",
            "below another file",
        ),
        ("diff --git a/x b/y\nrename from end.py\n", "below the repository"),
        ("+" * (8 << 20) + "x", "at most 8388608 can be graded"),
    ],
    ids=range(18),
)
def test_a_patch_that_does_not_apply_has_a_reason(patch, reason):
    with pytest.raises(PatchError, match=reason):
        patched(patch)


# --- against git ---------------------------------------------------------------------------------------------------

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is the reference")
LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "  d\n"]), max_size=12)


def git_applies(folder: Path, before: str, patch: str) -> str | None:
    (folder / "f").write_text(before, newline="")
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=patch.encode(), capture_output=True, check=False)
    return (folder / "f").read_bytes().decode() if done.returncode == 0 else None


@NEEDS_GIT
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=LINES, changed=LINES, other=LINES)
def test_git_agrees_on_patches_for_this_text_and_for_another(tmp_path, base, changed, other):
    """A patch made for one text meets another: both apply with one result, or neither applies."""
    before, after, met = "".join(base), "".join(changed), "".join(other)
    patch = unified_diff({"f": before}, {"f": after})
    for text in (before, met):
        if not patch:
            continue
        expected = git_applies(tmp_path, text, patch)
        try:
            found = apply_submission(patch, {"f": text}.get)["f"]
        except PatchError:
            found = None
        assert found == expected
