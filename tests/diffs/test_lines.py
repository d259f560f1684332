from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repairgym.diffs.lines import Edit, bounded_edits, is_long, line_edits, split_lines

LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\n"]), max_size=12)


@given(text=st.text(alphabet="ab\n\r\x0c\u2028", max_size=30))
def test_split_lines_keeps_every_character_and_splits_at_line_feeds_only(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert all(line.count("\n") == line.endswith("\n") for line in lines)


def replaced(old: list[str], new: list[str], edits: list[Edit]) -> list[str]:
    for first, end, first_new, end_new in reversed(edits):
        old = [*old[:first], *new[first_new:end_new], *old[end:]]
    return old


@given(old=LINES, new=LINES)
def test_edits_turn_the_old_lines_into_the_new_ones(old: list[str], new: list[str]) -> None:
    assert replaced(old, new, line_edits(old, new)) == new
    edits = bounded_edits([line.encode() for line in old], [line.encode() for line in new])
    assert replaced(old, new, edits) == new
    assert bool(edits) == (old != new)


def test_a_small_change_of_a_long_file_is_no_long_comparison() -> None:
    old = [f"line {number}\n" for number in range(8000)]
    assert not is_long(old, [*old[:4000], "new\n", *old[4001:]])
    assert is_long(old, old[::-1])
