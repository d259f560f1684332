from __future__ import annotations

import pytest

from repairgym.tasks.issues.cleaning import clean_message, without_repair
from repairgym.tasks.issues.run_text import without_run_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("assert <object object at 0x7fcbaed4cdd0> == 1", "assert <object object> == 1"),
        ("<Whitespace ' ' at 0x7FC3E79CD060> is not in list", "<Whitespace ' '> is not in list"),
        ("no file '/tmp/pytest-of-root/pytest-4/test_a0/x.txt'", "no file '/tmp/...'"),
        ("flags are 0xFF, not 0x00FF", "flags are 0xFF, not 0x00FF"),
        ("see docs/tmp/a.txt", "see docs/tmp/a.txt"),
    ],
)
def test_text_of_one_run_is_taken_out(text: str, expected: str) -> None:
    assert without_run_text(text) == expected


def test_noise_of_a_repository_is_taken_out() -> None:
    message = (
        "Merge pull request #12 from ada/bound\n\nValues equal to the bound were counted (#12)\n* fix tests\nflake8\n"
        "Fixes #12\n[ci skip]\nABC-123\nSigned-off-by: Ada <ada@example.org>\n"
    )
    assert clean_message(message) == "Values equal to the bound were counted"


def test_what_gives_the_repair_away_is_taken_out() -> None:
    told = (
        "Sizes roll over too late. Use '<' so that bounds advance. Counts are right.\n-    if a <= b:\n+    if a < b:"
    )
    assert without_repair(told) == "Sizes roll over too late. Counts are right."
    assert without_repair("Change `<=` to `<` in `units`.") == ""
    assert without_repair("It crashes, see calc/units.py:33") == ""
    assert without_repair("- a list of things\n- another one") == "- a list of things\n- another one"


def test_sentences_of_wrapped_paragraphs_go_whole() -> None:
    message = (
        "Sizes roll over at exact powers\n\nsize(1024) is '1024B', because the loop stopped one unit too early\n"
        "at an exact power. Use '<' so that exact bounds advance to the next\nunit. Others are `a ** b`, as before."
    )
    assert clean_message(message) == (
        "Sizes roll over at exact powers\n"
        "size(1024) is '1024B', because the loop stopped one unit too early at an exact power. "
        "Others are `a ** b`, as before."
    )


def test_lines_of_bots_about_dependencies_are_no_part_of_an_issue() -> None:
    told = "Reject empty names\n\nBumps [actions/checkout](https://example.org/a) from 6 to 7.\nupdated-dependencies:\n"
    told += "- dependency-name: actions/checkout\n  dependency-type: direct:production\n  update-type: version-update\n"
    assert clean_message(told) == "Reject empty names"
