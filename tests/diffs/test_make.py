"""Patches: what git makes of them, byte by byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repairgym.diffs.make import FileVersion, make_diff, quote_name, text_hunks, unified_diff

_NAMES = ("plain", "two words", "grüße/🚲", 'quo"te', "back\\slash", "tab\tnew\nline", "a/b/c", " lead", "-dash")
_LINE = st.sampled_from(
    [b"one", b"two", b"", b"  three", b"@@ -1 +1 @@", b"--- a/x", b"+++ b/x", b"\\ No", b"x\r", b"\xff"]
)
_TEXT = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(_LINE, max_size=12), st.sampled_from([b"", b"\n"])
)

_TEXT_LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\x0cd\n", "é\n"]), max_size=6).map("".join)


def absent():
    return FileVersion("")


def regular(content, is_executable=False):
    return FileVersion("file", 0o755 if is_executable else 0o644, len(content), content)


def link(target):
    return FileVersion("link", 0o777, len(target), target)


def write(folder, path, version):
    target = folder / path
    if version.kind:
        target.parent.mkdir(parents=True, exist_ok=True)
    if version.kind == "link":
        target.symlink_to(version.content.decode())
    elif version.kind == "file":
        target.write_bytes(version.content)
        target.chmod(version.mode)


def read(folder):
    content = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            content[name] = ("link", str(path.readlink()))
        elif path.is_file():
            content[name] = (bool(path.stat().st_mode & 0o100), path.read_bytes())
    return content


def apply(folder, patch):
    if patch:
        done = subprocess.run(["git", "apply", "-p1", "-"], cwd=folder, input=patch, capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr, patch)


def round_trip(folder, changes):
    for name in ("before", "after"):
        (folder / name).mkdir(parents=True)
        (folder / name / "kept").write_bytes(b"kept")
    for path, before, after in changes:
        write(folder / "before", path, before)
        write(folder / "after", path, after)
    apply(folder / "before", make_diff(changes).patch)
    assert read(folder / "before") == read(folder / "after")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_TEXT, _TEXT, st.booleans(), st.booleans()), min_size=1, max_size=len(_NAMES)))
def test_git_applies_the_patch(tmp_path_factory, texts):
    changes = [
        (name, regular(before, was_executable), regular(after, is_executable))
        for name, (before, after, was_executable, is_executable) in zip(_NAMES, texts, strict=False)
    ]
    round_trip(tmp_path_factory.mktemp("trip"), changes)


def test_git_applies_odd_changes(tmp_path):
    long = b"".join(b"%d\n" % number for number in range(200))
    round_trip(
        tmp_path / "trip",
        [
            ("added", absent(), regular(b"text")),
            ("deleted", regular(b"text\n"), absent()),
            ("empty added", absent(), regular(b"")),
            ("empty deleted", regular(b""), absent()),
            ("emptied", regular(b"x\ny"), regular(b"")),
            ("executable added", absent(), regular(b"#!/bin/sh\n", True)),
            ("file to folder", regular(b"x"), FileVersion("folder")),
            ("file to folder/inner", absent(), regular(b"y\n")),
            ("file to link", regular(b"x\n"), link(b"kept")),
            ("folder to file/inner", regular(b"y\n"), absent()),
            ("folder to file", FileVersion("folder"), regular(b"x")),
            ("link added", absent(), link(b"no/such file")),
            ("link moved", link(b"kept"), link(b"../else")),
            ("link to file", link(b"kept"), regular(b"x\n")),
            ("long", regular(long), regular(long.replace(b"7\n", b"seven\n").replace(b"100\n", b""))),
            ("mode and text", regular(b"x\n"), regular(b"y\r\n", True)),
            ("only mode", regular(b"x\n"), regular(b"x\n", True)),
        ],
    )


def test_omitted_changes_are_reported():
    diff = make_diff(
        [
            ("binary", regular(b"a\0b"), regular(b"a\0c")),
            ("huge", absent(), FileVersion("file", 0o644, 1 << 30)),
            ("pipe", absent(), FileVersion("other", 0o644)),
            ("folder", absent(), FileVersion("folder", 0o755)),
            ("text", absent(), regular(b"x\n")),
        ]
    )
    assert {change.path: change.omission for change in diff.changes} == {
        "binary": "binary",
        "huge": "large",
        "pipe": "special",
        "text": "",
    }
    assert not diff.is_complete
    assert diff.patch.count(b"diff --git") == 1
    assert diff.text.startswith("diff --git a/text b/text\nnew file mode 100644\n")


def test_very_different_texts_are_one_hunk(tmp_path):
    before = b"".join(b"%d\n" % (number % 7) for number in range(30_000))
    after = b"".join(b"%d\n" % (number * number % 11) for number in range(30_000))
    (hunk,) = text_hunks(before, after)
    assert hunk.count(b"\n-") + hunk.count(b"\n+") >= 59_000
    round_trip(tmp_path / "trip", [("big", regular(before), regular(after))])


def test_hunks_are_minimal():
    before = b"a\nb\nc\na\nb\nb\na\n"
    hunks = b"".join(text_hunks(before, b"c\nb\na\nb\na\nc\n"))
    assert sum(line[:1] in b"+-" for line in hunks.splitlines()) == 5
    assert list(text_hunks(before, before)) == []


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"a b", b"a b"),
        ("ü".encode(), b'"\\303\\274"'),
        (b'q"', b'"q\\""'),
        (b"n\n\x01", b'"n\\n\\001"'),
        (b"b\\", b'"b\\\\"'),
    ],
)
def test_names_are_quoted_like_git(name, quoted):
    assert quote_name(name) == quoted


@settings(max_examples=15, deadline=None)
@given(before=_TEXT_LINES, after=_TEXT_LINES, tail=st.sampled_from(["", "last"]))
def test_git_applies_a_unified_diff(tmp_path_factory: object, before: str, after: str, tail: str) -> None:
    folder = tmp_path_factory.mktemp("apply")  # type: ignore[attr-defined]
    (folder / "m.py").write_bytes(before.encode())
    patch = unified_diff({"m.py": before}, {"m.py": after + tail})
    if before == after + tail:
        assert patch == ""
        return
    done = subprocess.run(["git", "apply", "-p1", "-"], input=patch.encode(), cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "m.py").read_bytes() == (after + tail).encode()


def test_added_and_deleted_files(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("x = 1\n")
    patch = unified_diff({"old.py": "x = 1\n"}, {"new.py": "y = 2\n", "old.py": None})
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("new.py", "y = 2\n")]
