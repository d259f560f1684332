from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repairgym.tasks.sources.fixes import aligned, changes_code, find_hunks, revert

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
