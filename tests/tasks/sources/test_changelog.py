from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.issues.assignment import assign_entries
from repairgym.tasks.sources.changelog import MIN_FIT, Clues, clean_entry, read_entries


def best_entry(entries: list[str], clues: Clues) -> str:
    (number,) = assign_entries([[clues.score(entry) for entry in entries]], MIN_FIT)
    return "" if number is None else entries[number]


RST = """
Development Version
-------------------

Nothing yet.

Release 0.5.1 (Jul 15, 2024)
----------------------------

Enhancements

* New "compact" option for formatter. If set, the formatter tries to produce
  a more compact output by avoiding some line breaks (issue783).

Bug Fixes

* The strip comments filter was a bit greedy and removed too much
  whitespace (issue772, pr773 by someone).
* Fix token types for asterisks in `SELECT COUNT(*)`.

Release 0.5.0 (Apr 13, 2024)
----------------------------

* Older entry about comments (issue772).
"""
COMPACT = (
    'New "compact" option for formatter. If set, the formatter tries to produce a more compact output by avoiding '
    "some line breaks (issue783)."
)
MARKDOWN = """# Changelog

## [1.2.0] - 2024-05-05

### Fixed

- Fix `parse` for empty tables ([#33](https://example.org/33))

## [1.1.0] - 2024-01-01

- Something else
"""


def make_tree(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def test_entries_of_one_version_only(tmp_path: Path) -> None:
    entries = read_entries(make_tree(tmp_path, "CHANGELOG", RST), "0.5.1")
    assert entries == [
        "Enhancements",
        COMPACT,
        "Bug Fixes",
        "The strip comments filter was a bit greedy and removed too much whitespace (issue772).",
        "Fix token types for asterisks in `SELECT COUNT(*)`.",
    ]


@pytest.mark.parametrize("name", ["CHANGES.md", "docs/changelog.md", "HISTORY.md"])
def test_markdown_and_places(tmp_path: Path, name: str) -> None:
    assert read_entries(make_tree(tmp_path, name, MARKDOWN), "1.2.0") == ["Fix `parse` for empty tables (#33)"]
    assert read_entries(tmp_path, "9.9") == []


def test_issue_number_beats_words(tmp_path: Path) -> None:
    entries = read_entries(make_tree(tmp_path, "CHANGELOG", RST), "0.5.1")
    by_number = Clues.collect(["StripCommentsFilter.process"], ["tests/t.py::test_issue772"], "")
    assert best_entry(entries, by_number).startswith("The strip comments filter")
    by_name = Clues.collect([], ["tests/t.py::test_compact_formatter_output"], "")
    assert "compact" in best_entry(entries, by_name)


def test_no_entry_rather_than_a_wrong_one(tmp_path: Path) -> None:
    entries = read_entries(make_tree(tmp_path, "CHANGELOG", RST), "0.5.1")
    assert best_entry(entries, Clues.collect(["unknown"], ["t.py::test_thing"], "")) == ""
    assert best_entry(["fix parse of x", "fix parse of y"], Clues.collect(["parse"], [], "")) == ""


def test_clean_entry_has_no_links_roles_or_credits() -> None:
    entry = "Fix :func:`a.b <x>` and ``c`` in `docs <https://example.org>`_, see https://example.org/1"
    entry += " (issue7, pr8 by Ada) (by Bob)"
    assert clean_entry(entry) == "Fix `a.b` and `c` in docs, see (issue7)"


def test_numbers_in_the_source_of_failing_tests_are_clues() -> None:
    entries = ["Fix whitespace removal with nested expressions (issue782).", "Fix removal of words (issue9)."]
    silent = Clues.collect([], ["t.py::test_removes_it"], "")
    assert best_entry(entries, silent) == ""
    told = Clues.collect([], ["t.py::test_removes_it"], "", "def test_removes_it():  # issue782")
    assert best_entry(entries, told) == entries[0]


def test_forms_of_a_word_are_one_and_changed_lines_break_ties() -> None:
    entries = ["Faster removal of nested groups.", "Faster removal of plain words."]
    clues = Clues.collect([], ["t.py::test_faster_to_remove_it"], "nested = tokens.group()")
    assert best_entry(entries, clues) == entries[0]


def test_bold_words_are_plain_and_powers_stay() -> None:
    assert clean_entry("- **Incompatible change**: `x ** 2` takes **kwargs, not *args") == (
        "Incompatible change: `x ** 2` takes **kwargs, not *args"
    )


def test_references_leave_no_empty_brackets() -> None:
    assert clean_entry("Fix a thing (https://example.org/33, <https://example.org>).") == "Fix a thing."


@pytest.mark.parametrize(
    "heading", ["## **1.1.0**", f"## [v1.1.0](https://example.org/{'compare' * 12}/v1.0.0...v1.1.0) - 2026-06-08"]
)
def test_headings_may_be_bold_or_long_links(heading: str, tmp_path: Path) -> None:
    commit = "[`fc17361`](https://example.org/commit/fc17361)"
    lines = [
        heading,
        "",
        f"- [Fix] `parse`: keep dots {commit}",
        "",
        heading.replace("1.1.0", "1.0.0"),
        "- [New] older",
    ]
    (tmp_path / "CHANGELOG.md").write_text("\n".join(lines), encoding="utf-8")
    assert read_entries(tmp_path, "1.1.0") == ["[Fix] `parse`: keep dots"]


def test_a_method_of_the_platform_is_no_touched_function() -> None:
    clues = Clues.collect(["stringify"], [], "JSON stringify")
    assert clues.score("cache `JSON.stringify`")[0] < clues.score("`stringify`: keep dots")[0]
