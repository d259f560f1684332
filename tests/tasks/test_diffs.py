from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from repairgym.diffs.make import split_lines, unified_diff

LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\x0cd\n", "é\n"]), max_size=6).map("".join)


@given(text=st.text(alphabet="ab\n\r\x0c\u2028", max_size=30))
def test_split_lines_keeps_every_character_and_splits_at_line_feeds_only(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert all(line.count("\n") == line.endswith("\n") for line in lines)


@settings(max_examples=15, deadline=None)
@given(before=LINES, after=LINES, tail=st.sampled_from(["", "last"]))
def test_git_applies_the_diff(tmp_path_factory: object, before: str, after: str, tail: str) -> None:
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
