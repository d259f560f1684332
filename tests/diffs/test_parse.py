from __future__ import annotations

import pytest

from repairgym.diffs.parse import PatchError, num_changed_lines, num_edits, numbered_rows, parse_patch


def test_counts() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,5 +1,5 @@\n-a\n+b\n c\n-d\n-e\n+f\n g\n+h\n"
    assert num_changed_lines(patch) == 6
    assert num_edits(patch) == 3
    assert (num_changed_lines(""), parse_patch("")) == (0, [])


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("@@ -1 +1 @@\n-a\n+b\n", "without a file name"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n", "got the end"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n?a\n", r"got '\?a"),
        ("--- a/x\n+++ b/x\n@@ -x +1 @@\n", "expected '@@ -L,N"),
        ("diff --git x\n", "no file name can be read"),
    ],
)
def test_a_broken_diff_is_rejected(patch: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        parse_patch(patch)


def test_rows_are_numbered_by_the_headers_of_their_hunks() -> None:
    patch = "--- a/m\n+++ b/m\n@@ -3,2 +3,2 @@\n same\n--- old\n+++ new\n--- m\n+++ /dev/null\ntext\n"
    assert [(row.path, row.kind, row.text, row.old_number, row.new_number) for row in numbered_rows(patch)] == [
        ("m", "file", "m", None, None),
        ("m", "hunk", "@@ -3,2 +3,2 @@", None, None),
        ("m", "same", "same", 3, 3),
        ("m", "del", "-- old", 4, None),
        ("m", "add", "++ new", None, 4),
        ("/dev/null", "file", "m (removed)", None, None),
        ("/dev/null", "note", "text", None, None),
    ]
    assert list(numbered_rows("")) == []
