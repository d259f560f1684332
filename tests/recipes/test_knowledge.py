"""Filling the knowledge base: what enters, what never does, what offers count."""

from dataclasses import replace

import pytest

from mendwright.errors import TaskError
from mendwright.recipes.knowledge import add_run, held_out_packages
from mendwright.records import Attempt, MainError, Provenance, StopReason, VerdictKind
from mendwright.tools.knowledge import KnowledgeBase

ERROR = MainError(error_class="dependency", message="No module named 'hatchling'")


@pytest.fixture
def tasks(task):
    def made(name, package, split):
        return task.model_copy(
            update={"id": name, "provenance": Provenance(package=package, version="1"), "split": split}
        )

    found = [made("a", "own", "train"), made("b", "own", "train"), made("h", "secret", "test")]
    found += [made("v", "other", "validation"), made("s", "secret", "train"), made("c", "semver", "train")]
    return {one.id: one for one in found}


@pytest.fixture
def knowledge(tmp_path):
    with KnowledgeBase.create(tmp_path / "fixes.db") as base:
        yield base


def attempt(fix_id="", outcome="passed"):
    return Attempt(error=ERROR, fix_id=fix_id, first_turn=0, stop_reason=StopReason.SUBMITTED, outcome=outcome)


def add(store, trajectory_maker, task_id, *, kind=VerdictKind.PASSED, name="", patch="+ x", attempts=(), **more):
    made = trajectory_maker(
        name or f"t-{task_id}", task_id, kind=kind, group_id=f"g-{task_id}", final_patch=patch, **more
    )
    store.add_trajectory(replace(made, attempts=attempts), phase="rollout", step=0, split="train")


def test_only_what_passed_on_training_packages_enters(store, trajectory_maker, tasks, knowledge):
    for task_id in tasks:
        add(store, trajectory_maker, task_id, attempts=(attempt(),))
    add(store, trajectory_maker, "b", name="failed", kind=VerdictKind.FAILED)
    add(store, trajectory_maker, "b", name="bought", kind=VerdictKind.EXPLOITED)
    add(store, trajectory_maker, "gone")
    counts = add_run(knowledge, store, tasks)
    assert counts == {"added": 2, "held_out": 4, "not_passed": 2, "unknown_task": 1, "offers": 0}
    assert knowledge.packages() == {"own": 2}
    (found, _) = knowledge.search("hatchling")
    assert (found.fix.error, found.fix.patch) == (ERROR, "+ x")


def test_held_out_are_packages_of_the_tasks_and_of_the_catalogue(tasks):
    found = held_out_packages(tasks)
    assert {"secret", "other", "semver", "toolz"} <= found
    assert not {"own", "idna"} & found


def test_without_attempts_the_report_is_the_error(store, trajectory_maker, tasks, knowledge):
    add(store, trajectory_maker, "a")
    add_run(knowledge, store, tasks)
    (found,) = knowledge.search("m.py")
    assert found.fix.error.message == tasks["a"].issue


def test_offers_count_once_and_the_last_attempt_decides(store, trajectory_maker, tasks, knowledge):
    for task_id in ("a", "b"):
        add(store, trajectory_maker, task_id, attempts=(attempt(),))
    assert add_run(knowledge, store, tasks)["added"] == 2
    first, second = (one.fix.id for one in knowledge.search("hatchling"))
    tried = (attempt(first, "same_error"), attempt(second))
    add(store, trajectory_maker, "a", name="again", patch="+ y", attempts=tried)
    asked = (("ask_for_help", "q", f"fix {second} of own: dependency error", ""), ("submit", "", "ok", ""))
    add(store, trajectory_maker, "b", name="asked", kind=VerdictKind.FAILED, steps=asked)
    for _ in range(2):
        counts = add_run(knowledge, store, tasks)
    assert (counts["known"], counts["offers"]) == (3, 3)
    found = {one.fix.id: (one.num_offers, one.num_solved) for one in knowledge.search("hatchling")}
    assert (found[first], found[second]) == ((1, 0), (2, 1))


def test_other_splits_need_another_knowledge_base(store, trajectory_maker, tasks, knowledge):
    add(store, trajectory_maker, "a")
    add_run(knowledge, store, tasks)
    moved = {**tasks, "b": tasks["b"].model_copy(update={"split": "test"})}
    with pytest.raises(TaskError, match="holds fixes of own"):
        add_run(knowledge, store, moved)
