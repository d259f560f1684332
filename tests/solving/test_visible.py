"""What a search may know of a task."""

from __future__ import annotations

import pytest

from repairgym.errors import TaskError
from repairgym.solving.visible import visible_view

CUT = "def test_f():\n    assert f(1, 1)\n\n\ndef test_kept():\n    assert f(0, 1)\n"
TESTS = {
    "visible_tests": ("test_m.py::test_f", "test_m.py::test_passing"),
    "fail_to_pass": ("test_m.py::test_f", "test_m.py::test_hidden"),
    "pass_to_pass": ("test_m.py::test_passing", "test_m.py::test_kept", "test_m.py::test_cut", "test_n.py::test_n[0]"),
}


def test_hidden_tests_and_the_repair_are_not_in_the_view(task):
    task = task.model_copy(update={**TESTS, "base_files": {**task.base_files, "test_m.py": CUT}, "gold_patch": "x"})
    view = visible_view(task)
    assert view.fail_to_pass == ("test_m.py::test_f",)
    assert view.pass_to_pass == ("test_m.py::test_passing", "test_m.py::test_kept", "test_n.py::test_n[0]")
    text = view.model_dump_json()
    assert "test_hidden" not in text
    assert "test_cut" not in text
    assert "<=" not in text
    assert view.gold_files == {"m.py": task.base_files["m.py"]}
    assert not view.gold_patch
    assert visible_view(task, is_gold_kept=True).gold_files == task.gold_files


def test_a_task_without_visible_tests_is_rejected(task):
    with pytest.raises(TaskError, match="no visible test"):
        visible_view(task.model_copy(update={"visible_tests": ()}))
