"""Selection of tasks part by part, with the counts after each part and the error of an empty one."""

from __future__ import annotations

import pytest

from repairgym.config.selection import TaskSelection, TrainingSelection
from repairgym.errors import ConfigError, InputError
from repairgym.records import UNDERSPECIFIED, ReplayStrength, Task
from repairgym.tasks.selection import read_ids, select_tasks


@pytest.fixture
def tasks(task) -> list[Task]:
    rows = [
        ("a", "mutations", "idna", "train", "", "easy"),
        ("b", "releases", "idna", "train", "2026-04-30T23:59:59Z", "hard"),
        ("c", "history", "click", "train", "2026-05-01T00:00:00Z", "easy"),
        ("d", "breakages", "click", "test", "2026-06-30", "hard"),
        ("e", "releases", "boltons", "test", "2026-07-01", "hard"),
    ]
    made = []
    for name, source, package, split, created_at, difficulty in rows:
        provenance = task.provenance.model_copy(update={"package": package})
        parts = {"source": source, "provenance": provenance, "split": split, "created_at": created_at}
        made.append(task.model_copy(update={"id": name, "labels": {"difficulty": difficulty}, **parts}))
    return made


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, "abcde"),
        ({"splits": ("train",)}, "abc"),
        ({"sources": ("releases", "breakages")}, "bde"),
        ({"packages": ("click", "boltons")}, "cde"),
        ({"labels": {"difficulty": ("hard",)}, "splits": ("test",)}, "de"),
        ({"since": "2026-05-01", "before": "2026-07-01"}, "cd"),
        ({"before": "2026-05-01"}, "b"),
        ({"ids": ("a", "e")}, "ae"),
    ],
)
def test_each_part_narrows(tasks, parts, expected):
    selected = select_tasks(tasks, TaskSelection(**parts))
    assert sorted(task.id for task in selected.tasks) == list(expected)
    assert selected.num_all == 5


def test_the_order_is_fixed_and_a_number_cuts_it(tasks):
    every = [task.id for task in select_tasks(tasks, TaskSelection()).tasks]
    assert [task.id for task in select_tasks(tasks[::-1], TaskSelection(num_tasks=3)).tasks] == every[:3]


def test_counts_after_each_part_are_told(tasks):
    selection = TaskSelection(splits=("train",), sources=("releases",), num_tasks=9)
    summary = select_tasks(tasks, selection).summary
    assert summary == "1 of 5 tasks (splits=train: 3, sources=releases: 1, num_tasks=9: 1)"
    assert select_tasks(tasks, TaskSelection()).summary == "5 of 5 tasks (every task)"


def test_underspecified_tasks_are_left_out_where_asked_and_the_count_is_told(tasks):
    only = TaskSelection(is_specified_only=True)
    assert select_tasks(tasks, only).summary == "5 of 5 tasks (every task)"
    marked = [*tasks[:4], tasks[4].model_copy(update={"labels": {UNDERSPECIFIED: "true"}})]
    assert select_tasks(marked, only).summary == "4 of 5 tasks (is_specified_only: 4)"
    assert len(select_tasks(marked, TaskSelection()).tasks) == 5


def test_training_leaves_out_tasks_with_a_thin_verdict_and_tells_the_count(tasks):
    def judged(task, num_inputs):
        counts = {"num_tests": 1, "num_scripts": 1, "num_lost_steps": 0, "num_deciding_steps": 1}
        strength = ReplayStrength(**counts, num_deciding_inputs=num_inputs)
        return task.model_copy(update={"certificate": task.certificate.model_copy(update={"replay": strength})})

    train = [task for task in tasks if task.split == "train"]
    measured = [judged(task, number) for task, number in zip(train, (None, 1, 2), strict=True)]
    assert "is_told_only: 2" in select_tasks(measured, TrainingSelection()).summary
    assert len(select_tasks(measured, TaskSelection(splits=("train",))).tasks) == 3
    assert "is_told_only" not in select_tasks(tasks, TrainingSelection()).summary


def test_an_empty_selection_names_the_part_that_emptied_it(tasks):
    with pytest.raises(ConfigError) as caught:
        select_tasks(tasks, TaskSelection(splits=("train",), sources=("breakages",), since="2026-05-01"))
    assert str(caught.value) == (
        "no task is left by sources=breakages: the folder has 5, 3 with splits=train, 0 with sources=breakages; "
        "before it there were: mutations 1, releases 1, history 1"
    )
    with pytest.raises(ConfigError, match="before it there were: no value 1"):
        select_tasks(tasks, TaskSelection(ids=("a",), since="2026-05-01"))


def test_ids_come_from_files_and_must_be_known(tasks, tmp_path):
    file = tmp_path / "verified.txt"
    file.write_text("# appendix B\nb\n\ne # the last\n", encoding="utf-8")
    selected = select_tasks(tasks, TaskSelection(id_files=(str(file),), ids=("a",), splits=("train",)))
    assert sorted(task.id for task in selected.tasks) == ["a", "b"]
    with pytest.raises(ConfigError, match="2 of 3 ids are not in the task folder: x, y"):
        select_tasks(tasks, TaskSelection(ids=("a", "x", "y")))
    file.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no task id"):
        read_ids(file)
    with pytest.raises(InputError, match="cannot read the ids"):
        read_ids(tmp_path / "absent.txt")
