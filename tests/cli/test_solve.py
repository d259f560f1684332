"""Arguments and refusals of `repairgym solve`, and a choice among patches in real sandboxes."""

from __future__ import annotations

import pytest


def test_a_dry_run_shows_the_tasks_that_are_named(cli):
    code, text = cli("solve", "tasks", "run", "--task", "a", "--task", "b", "budget.max_test_runs=3", "--dry-run")
    assert code == 0
    assert 'ids = ["a", "b"]' in text
    assert "max_test_runs = 3" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a", "b", "c"), 2, "expected TASKS [RUN]"),
        (("nowhere",), 3, "no tasks.jsonl in nowhere"),
        (("x", "rollout.grading.is_replayed=true"), 2, "must not see"),
        (("x", "--output", "shop.py/x.diff"), 3, "got --output shop.py/x.diff"),
        (("x", "--output", "."), 3, "expected a file in a folder"),
        ((".",), 2, "--test COMMAND"),
        ((".", "--test", "pytest", "--grade"), 2, "neither ids nor hidden tests"),
    ],
)
def test_calls_that_cannot_work(cli, arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("")
    found, text = cli("solve", *arguments)
    assert (found, message in text) == (code, True), text


def test_an_unknown_task_is_named(cli, task_folder, tmp_path):
    code, text = cli("solve", task_folder, tmp_path / "run", "--task", "other", "--predictions", "none.jsonl")
    assert code == 3
    assert "cannot read the predictions" in text
