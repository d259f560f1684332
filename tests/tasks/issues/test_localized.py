from __future__ import annotations

import random
from pathlib import Path

import pytest

from repairgym.records import Location
from repairgym.tasks.build.assembly import mutation_issue
from repairgym.tasks.issues.describing import Failure
from repairgym.tasks.issues.localized import BrokenFunction, localized_issue, retold
from repairgym.tasks.synthetic import LOCALIZATION, told_place
from repairgym.testing.scripted import scripted_task

TESTS = """
def test_direct():
    assert _total([1, 2]) == 3

def test_through():
    box = Box([1, 2])
    assert box.sum() == 3
"""
DIRECT, THROUGH = "tests/test_a.py::test_direct", "tests/test_a.py::test_through"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TESTS)
    return tmp_path


def bug(**messages: str) -> BrokenFunction:
    ids = {"direct": DIRECT, "through": THROUGH}
    return BrokenFunction("box/core.py", "Box._total", {ids[name]: Failure(text) for name, text in messages.items()})


def test_a_function_is_told_as_before(tree: Path) -> None:
    made = localized_issue([bug(direct="assert 2 == 3")], "function", tree, "7")
    expected = mutation_issue("Box._total", "box/core.py", "assert 2 == 3", random.Random("7"))
    assert made == (expected, "function")


def test_a_file_is_told_without_a_failure_that_names_the_function(tree: Path) -> None:
    text, level = localized_issue([bug(direct="_total() takes 1 argument", through="assert 2 == 3")], "file", tree, "7")
    assert level == "file"
    assert "box/core.py" in text
    assert "assert 2 == 3" in text
    assert "_total" not in text
    only = localized_issue([bug(direct="_total() takes 1 argument")], "file", tree, "7")
    assert only[1] == "file"
    assert "_total" not in only[0]


def test_a_symptom_is_what_a_test_that_does_not_name_the_function_expects(tree: Path) -> None:
    text, level = localized_issue([bug(direct="assert 2 == 3", through="assert 2 == 3")], "symptom", tree, "7")
    assert level == "symptom"
    assert text == "After `box = Box([1, 2])`, `box.sum()` should be `3`. Found: assert 2 == 3"


def test_without_such_a_test_the_symptom_is_the_failure(tree: Path) -> None:
    text, level = localized_issue([bug(direct="assert 2 == 3")], "symptom", tree, "7")
    assert level == "symptom"
    assert text.endswith("assert 2 == 3")
    assert "core" not in text


def test_several_bugs_have_a_paragraph_each_and_the_label_of_the_best_located(tree: Path) -> None:
    other = BrokenFunction("box/core.py", "sum", {THROUGH: Failure("box.sum() is missing in core.py")})
    text, level = localized_issue([bug(direct="assert 2 == 3"), other], "symptom", tree, "7")
    assert len(text.split("\n\n")) == 2
    assert level == "symptom"
    assert "sum" not in text
    assert localized_issue([bug(direct="x"), other], "function", tree, "7")[1] == "function"


def test_a_task_told_again_opens_no_more_than_its_issue_tells(tree: Path) -> None:
    place = Location(path="box/core.py", name="Box._total", first_line=30, last_line=40)
    task = scripted_task().model_copy(update={"location": place})
    assert told_place(task) == place
    failures = {THROUGH: Failure("assert 2 == 3")}
    for level, first_line in (("function", 30), ("file", 1), ("symptom", None)):
        told = retold(task, failures, level, tree)
        assert told.labels[LOCALIZATION] == level
        shown = told_place(told)
        assert (shown.first_line if shown else None) == first_line
        assert told.location == place
