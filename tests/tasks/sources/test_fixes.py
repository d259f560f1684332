from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from repairgym.tasks.build.test_files import first_lines
from repairgym.tasks.issues.cleaning import reveals
from repairgym.tasks.layers.catalogue import Project
from repairgym.tasks.sources.fixes import aligned, changes_code, find_hunks, revert, whole_fix
from repairgym.tasks.sources.pairs import texts_of, texts_of_both

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n"]), max_size=25).map("".join)


@given(old=TEXTS, new=TEXTS)
def test_reverting_all_hunks_gives_the_older_text_and_none_the_newer(old: str, new: str) -> None:
    older, newer = {"m": old, "gone": "x\n"}, {"m": new, "born": "y\n"}
    hunks = find_hunks(older, newer)
    reverted = {**newer, **revert(newer, older, hunks)}
    assert {path: text for path, text in reverted.items() if text is not None} == older
    assert revert(newer, older, []) == {}


@given(old=TEXTS, new=TEXTS)
def test_each_hunk_reverts_its_own_lines_only(old: str, new: str) -> None:
    older, newer = {"m": old}, {"m": new}
    for hunk in find_hunks(older, newer):
        lines = new.splitlines(keepends=True)
        expected = lines[: hunk.first] + list(hunk.old_lines) + lines[hunk.end :]
        assert revert(newer, older, [hunk])["m"] == "".join(expected)


def test_changes_further_apart_than_the_gap_are_separate_hunks() -> None:
    older = {"m": "a\n1\n2\nb\n1\n2\n3\nc\n"}
    newer = {"m": "A\n1\n2\nB\n1\n2\n3\nC\n"}
    assert [(h.first, h.end, h.old_lines) for h in find_hunks(older, newer)] == [
        (0, 4, ("a\n", "1\n", "2\n", "b\n")),
        (7, 8, ("c\n",)),
    ]


def test_comments_and_docstrings_are_no_code() -> None:
    newer = {"m": 'def f():\n    """New."""\n    # new\n    return 1\n'}
    older = {"m": 'def f():\n    """Old."""\n    return 1\n'}
    hunks = find_hunks(older, newer)
    assert [changes_code(newer, older, hunk) for hunk in hunks] == [False] * len(hunks)
    other = {"m": 'def f():\n    """Old."""\n    return 2\n'}
    assert all(changes_code(newer, other, hunk) for hunk in find_hunks(other, newer))


def test_a_file_that_the_fix_adds_is_text_of_the_fix() -> None:
    added = "def feed_semicolon(line):\n    return line.split(';')\n"
    fix = whole_fix({"gone.py": "x\n", "m.py": "a = 1\n"}, {"m.py": "a = 2\n", "new.py": added})
    assert fix.num_lines == 1 + 2 + 2
    assert fix.new_text == "a = 2\n" + added
    assert reveals("it lacks `return line.split(';')`", fix)
    assert fix.broken_files == {"gone.py": "x\n", "m.py": "a = 1\n", "new.py": None}
    assert fix.touched_functions() == []


def test_files_that_do_not_parse_have_no_functions_and_a_byte_order_mark_is_no_code() -> None:
    mark = "\ufeff"
    older = {"m.py": f"{mark}def f():\n    return 1\n", "t.py": "{% if x %}\n1\n", "s.py": "def g(:\n"}
    newer = {"m.py": f"{mark}def f():\n    return 2\n", "t.py": "{% if x %}\n2\n", "s.py": "def g():\n    pass\n"}
    fix = whole_fix(older, newer)
    assert [changes_code(newer, older, hunk) for hunk in fix.hunks] == [True, False, False]
    assert [(path, span.qualified_name) for path, span in fix.touched_functions()] == [("m.py", "f"), ("s.py", "g")]
    location = fix.location()
    assert location
    assert (location.path, location.name) == ("m.py", "f")
    assert first_lines("m.py", newer["m.py"]) == {1: 1}
    assert first_lines("t.py", newer["t.py"]) == {}


def test_files_of_another_encoding_stay_as_they_are(tmp_path: Path) -> None:
    texts = {"a.py": ("x = 1\n", "x = 2\n"), "old.py": ("x = 'é'\n", "x = 'é'\ny = 1\n"), "own.py": (None, "z\n")}
    for path, pair in texts.items():
        for name, text, encoding in zip(("older", "newer"), pair, ("latin-1", "utf-8"), strict=True):
            (tmp_path / name).mkdir(exist_ok=True)
            if text is not None:
                (tmp_path / name / path).write_text(text, encoding=encoding)
    project = Project(name="p", split="train", sources=("*.py",), tests=())
    older, newer = texts_of_both(project, tmp_path / "older", tmp_path / "newer")
    assert older == {"a.py": "x = 1\n"}
    assert newer == {"a.py": "x = 2\n", "own.py": "z\n"}
    assert texts_of(project, tmp_path / "older") == older


def test_revert_that_does_not_parse_is_no_code_change() -> None:
    newer, older = {"m": "x = (\n1,\n2,\n3,\n4)\n"}, {"m": "y = [\n1,\n2,\n3,\n5]\n"}
    assert [changes_code(newer, older, hunk) for hunk in find_hunks(older, newer)] == [False, False]


def test_files_of_another_root_are_aligned() -> None:
    older = {"pkg/a.py": "1", "pkg/gone.py": "2", "setup_it.py": "3"}
    assert aligned(older, {"src/pkg/a.py": "", "src/setup_it.py": "", "lib/setup_it.py": ""}) == {
        "src/pkg/a.py": "1",
        "pkg/gone.py": "2",
        "setup_it.py": "3",
    }
    assert aligned({"src/pkg/a.py": "1"}, {"pkg/a.py": ""}) == {"pkg/a.py": "1"}
    assert aligned(older, {"pkg/a.py": "", "src/pkg/a.py": ""}) == older
