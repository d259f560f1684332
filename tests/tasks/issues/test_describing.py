"""Specification check and description of a task on plain files; nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repairgym.records import Task
from repairgym.tasks.issues.describing import Failure, Report, assigned_entries, describe
from repairgym.tasks.issues.specification import Facts, find_untold
from repairgym.testing.scripted import scripted_task

BROKEN = "def size(text):\n    return len(text)\n"
GOLD = """def size(text, unit='b'):
    if unit not in ('b', 'k'):
        raise LookupError('no such unit here')
    return len(text)
"""
TESTS = {
    "test_plain": "    assert size('a') == 1\n",
    "test_unit": "    assert size('a', unit='k') == 1\n",
    "test_wrong": "    with raises(LookupError, match='no such unit'):\n        size('a', unit='x')\n",
}
CHANGES = "1.1\n---\n\n* Sizes may be told in another unit, see `size`.\n* The parser of `other_thing` is faster.\n"


def test_file(*names: str) -> str:
    return "from m import size\n" + "".join(f"\n\ndef {name}():\n{TESTS[name]}" for name in names)


test_file.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text(GOLD)
    (tmp_path / "test_m.py").write_text(test_file(*TESTS))
    (tmp_path / "CHANGES.rst").write_text(CHANGES)
    return tmp_path


def make_task(*hidden: str, visible: str = "", issue: str = "", **labels: str) -> Task:
    shown = [name for name in TESTS if name not in hidden]
    changes: dict[str, Any] = {
        "source": "releases",
        "provenance": {"package": "m", "version": "1.1", "base_version": "1.0", "sdist_sha256": ""},
        "base_files": {"m.py": BROKEN, "test_m.py": test_file(*shown)},
        "gold_files": {"m.py": GOLD},
        "issue": issue,
        "fail_to_pass": tuple(f"test_m.py::{name}" for name in (*filter(None, [visible]), *hidden)),
        "visible_tests": (f"test_m.py::{visible}",) if visible else (),
        "labels": labels,
    }
    return Task.model_validate(scripted_task().model_dump() | changes)


def test_names_exceptions_and_messages_that_nobody_tells_are_found(tree: Path) -> None:
    hidden = make_task("test_unit", "test_wrong", issue="Sizes are wrong.")
    assert find_untold(Facts(hidden, tree)) == ("LookupError", "no such unit")
    # The changelog of the tree has the word "unit".
    (tree / "CHANGES.rst").write_text("")
    both = make_task("test_unit", "test_wrong", issue="LookupError: no such unit")
    assert find_untold(Facts(both, tree.rename(tree.with_name("other")))) == ()
    silent = make_task("test_unit", "test_wrong", issue="LookupError: no such UNIT here")
    assert find_untold(Facts(silent, tree.with_name("other"))) == ("no such unit", "unit")


def test_what_issue_or_visible_test_tells_is_known(tree: Path) -> None:
    told = make_task("test_wrong", issue="size() should raise LookupError: no such unit here")
    assert find_untold(Facts(told, tree)) == ()
    assert find_untold(Facts(make_task("test_unit", visible="test_wrong"), tree)) == ()
    assert find_untold(Facts(make_task("test_plain"), tree)) == ()


def test_without_a_text_the_issue_states_what_a_test_expects(tree: Path) -> None:
    task = make_task("test_unit")
    found = {"test_m.py::test_unit": Failure("TypeError: size() got an unexpected keyword argument 'unit'")}
    described = describe(task, tree, Report(failures=found))
    assert described.issue == (
        "`size('a', unit='k')` should be `1`. Found: TypeError: size() got an unexpected keyword argument 'unit'"
    )
    assert described.labels == {"issue_source": "tests", "kind": "feature"}
    unchanged = {"issue", "labels"}
    assert described.model_dump(exclude=unchanged) == task.model_dump(exclude=unchanged)


def test_an_underspecified_task_shows_one_more_test_or_states_what_it_needs(tree: Path) -> None:
    text = "Sizes of texts are wrong where somebody asks for another one than usual."
    shown = describe(make_task("test_unit", "test_wrong"), tree, Report(text, "issue"))
    assert shown.issue == text
    # Beside an entry of the changelog the test that stays hidden is told, too.
    entry = describe(make_task("test_unit", "test_wrong"), tree, Report("A unit may be told.", "changelog"))
    assert "`size('a', unit='k')` should be `1`." in entry.issue
    assert shown.visible_tests == ("test_m.py::test_wrong",)
    assert shown.base_files["test_m.py"] is not None
    assert "def test_wrong" in shown.base_files["test_m.py"]
    assert "def test_unit" not in shown.base_files["test_m.py"]
    stated = describe(make_task("test_wrong"), tree, Report(text, "issue"))
    assert stated.visible_tests == ()
    expected = "`size('a', unit='x')` should raise `LookupError` with a message that matches `'no such unit'`."
    assert stated.issue == f"{text}\n\n{expected}"
    assert "is_underspecified" not in stated.labels


def test_an_entry_of_another_change_is_not_taken(tree: Path) -> None:
    other = "Sizes of empty texts are no longer negative."
    described = describe(make_task("test_unit"), tree, Report(other, "changelog"))
    assert (described.issue, described.labels["issue_source"]) == ("`size('a', unit='k')` should be `1`.", "tests")
    own = "Sizes may be told in another unit."
    assert describe(make_task("test_unit"), tree, Report(own, "changelog")).issue.startswith(own)


def test_what_no_statement_can_tell_is_labelled(tree: Path) -> None:
    (tree / "test_m.py").write_text(test_file(*TESTS).replace("'no such unit'", repr("no such unit here" + "!" * 2000)))
    text = "Sizes of texts are wrong where somebody asks for another one than usual."
    described = describe(make_task("test_wrong"), tree, Report(text, "issue"))
    assert (described.issue, described.labels["is_underspecified"]) == (text, "true")


def test_the_entry_about_other_code_is_given_to_no_fix(tree: Path) -> None:
    tasks = [make_task("test_unit"), make_task("test_plain")]
    assert assigned_entries(tasks[:1], tree) == ["Sizes may be told in another unit, see `size`."]
    # Both are the same repair here, so both claim the entry.
    assert assigned_entries(tasks, tree)[1] == ""
