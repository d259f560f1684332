"""Filling the knowledge base: what enters, what never does, what offers count."""

import time
from dataclasses import replace

import pytest

from repairgym.agent.tools.knowledge import KnowledgeBase, make_fix
from repairgym.config.commands import StartsConfig
from repairgym.errors import TaskError
from repairgym.records import (
    Attempt,
    MainError,
    Provenance,
    StopReason,
    TestOutcome,
    TestResult,
    TestRun,
    VerdictKind,
)
from repairgym.rollout.store import RunStore
from repairgym.studies.knowledge import add_run, find_starts, held_out_packages
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend

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


def test_equal_trajectory_ids_of_two_runs_are_two_episodes(store, trajectory_maker, tasks, knowledge, tmp_path):
    add(store, trajectory_maker, "a", attempts=(attempt(),))
    add_run(knowledge, store, tasks)
    (found,) = knowledge.search("hatchling")
    for number in range(2):
        time.sleep(0.002)  # rows are told apart by the millisecond in which they were stored
        with RunStore.create(tmp_path / f"run-{number}.db") as again:
            add(again, trajectory_maker, "b", name="same", kind=VerdictKind.FAILED, attempts=(attempt(found.fix.id),))
            add_run(knowledge, again, tasks)
    (found,) = knowledge.search("hatchling")
    assert (found.num_offers, found.num_solved) == (2, 0)


def test_other_splits_need_another_knowledge_base(store, trajectory_maker, tasks, knowledge):
    add(store, trajectory_maker, "a")
    add_run(knowledge, store, tasks)
    moved = {**tasks, "b": tasks["b"].model_copy(update={"split": "test"})}
    with pytest.raises(TaskError, match="holds fixes of own"):
        add_run(knowledge, store, moved)


@pytest.mark.asyncio
async def test_starts_have_the_main_error_and_fixes_of_other_tasks(tasks, knowledge, tmp_path):
    other = tasks["b"]
    error = MainError(error_class="test", message="AssertionError: clamp")
    fix = make_fix(other, error, "+ x")
    knowledge.add(fix, other)
    layers = TaskLayers(tmp_path, tmp_path)
    chosen = [tasks["a"], tasks["b"], tasks["h"]]
    found = await find_starts(chosen, StartsConfig(), lambda task: layers, ScriptedBackend(failing), knowledge)
    assert [task for task, _ in found] == chosen
    starts = [start for _, start in found]
    assert [one.task_id for one in starts] == ["a", "b", "h"]
    assert {one.error.message for one in starts} == {"AssertionError: clamp"}
    assert [[one.id for one in start.fixes] for start in starts] == [[fix.id], [], [fix.id]]


@pytest.mark.asyncio
async def test_starts_of_a_held_out_package_refuse_a_knowledge_base_that_has_its_fixes(tasks, knowledge, tmp_path):
    knowledge.add(make_fix(tasks["s"], ERROR, "+ x"), tasks["s"])
    layers = TaskLayers(tmp_path, tmp_path)
    with pytest.raises(TaskError, match="holds fixes of secret"):
        await find_starts([tasks["h"]], StartsConfig(), lambda task: layers, ScriptedBackend(failing), knowledge)


@pytest.mark.asyncio
async def test_a_build_with_several_errors_becomes_several_samples(tasks, knowledge, tmp_path):
    tests = tuple(f"tests/test_m.py::test_{name}" for name in ("one", "two", "alike", "three", "good"))
    task = tasks["a"].model_copy(update={"visible_tests": tests})
    messages = ["NameError: name 'x' is not defined", "assert 3 == 4", "assert [1] == []", "KeyError: 'b'"]

    def several(files, request):
        failed = [TestResult(outcome=TestOutcome.FAILED, message=message) for message in messages]
        results = [*failed, TestResult(outcome=TestOutcome.PASSED)]
        return TestRun(results=dict(zip(request.test_ids, results, strict=True)), exit_status=1)

    own = make_fix(task, MainError(error_class="other", message="NameError assert KeyError"), "+ x")
    other = make_fix(tasks["b"], MainError(error_class="other", message="KeyError: 'b'"), "+ y")
    knowledge.add(own, task)
    knowledge.add(other, tasks["b"])
    layers, backend = TaskLayers(tmp_path, tmp_path), ScriptedBackend(several)
    found = await find_starts([task], StartsConfig(), lambda task: layers, backend, knowledge, is_split=True)
    assert [sample.id for sample, _ in found] == ["a", "a-error-2", "a-error-3"]
    assert [start.error.message for _, start in found] == [messages[0], messages[1], messages[3]]
    assert [start.error.path for _, start in found] == [tests[0], tests[1], tests[3]]
    assert [start.task_id for _, start in found] == [sample.id for sample, _ in found]
    # All of a task's tests decide each of its samples, and its fix is no past fix of any.
    assert {(sample.fail_to_pass, sample.pass_to_pass, sample.split) for sample, _ in found} == {
        (task.fail_to_pass, task.pass_to_pass, task.split)
    }
    assert {fix.id for _, start in found for fix in start.fixes} == {other.id}
    assert make_fix(found[1][0], ERROR, "+ x").id == own.id
    # Without a file of starts an episode finds the same ones.
    samples = [sample for sample, _ in found]
    again = await find_starts(samples, StartsConfig(), lambda task: layers, ScriptedBackend(several), knowledge)
    assert again == found


def failing(files, request):
    result = TestResult(outcome=TestOutcome.FAILED, message="AssertionError: clamp")
    return TestRun(results=dict.fromkeys(request.test_ids, result), exit_status=1)
