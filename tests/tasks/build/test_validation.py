from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import TaskError
from repairgym.records import Task, TestOutcome, TestResult, TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import (
    Evidence,
    check_tests,
    gather_evidence,
    graded_files,
    plain_layers,
    run_fresh,
    task_layers,
    task_request,
    unstable_ids,
)
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore


def make_run(**outcomes: str) -> TestRun:
    results = {name: TestResult(outcome=TestOutcome(outcome)) for name, outcome in outcomes.items()}
    return TestRun(results=results, exit_status=1, duration_s=0.5)


def test_unstable_tests_are_in_neither_list() -> None:
    empty = [make_run(a="failed", b="passed", c="failed", d="passed"), make_run(a="failed", b="passed", c="passed")]
    gold = [make_run(a="passed", b="passed", c="passed", d="passed")] * 2
    assert unstable_ids(empty) == {"c", "d"}
    assert Evidence(empty, gold).split_tests(("a", "b", "c", "d")) == (("a",), ("b",), ("c", "d"))
    assert Evidence(empty, gold).certificate(("a",), ("b",)).is_valid


@pytest.mark.parametrize(
    ("empty", "gold"),
    [
        ([make_run(a="passed", b="passed")], [make_run(a="passed", b="passed")]),
        ([make_run(a="failed", b="passed")], [make_run(a="failed", b="passed")]),
        ([make_run(a="failed", b="failed")], [make_run(a="passed", b="passed")]),
        ([make_run(a="failed", b="passed")], [make_run(a="passed", b="passed"), make_run(a="passed")]),
        ([], [make_run(a="passed", b="passed")]),
    ],
)
def test_certificate_needs_every_run(empty: list[TestRun], gold: list[TestRun]) -> None:
    assert not Evidence(empty, gold).certificate(("a",), ("b",)).is_valid


def test_tests_that_do_not_fit_together(built: TaskStore) -> None:
    task = built.load()[0]
    for change in (
        {"pass_to_pass": task.fail_to_pass},
        {"visible_tests": ("tests/test_numbers.py::test_other",)},
        {"fail_to_pass": ()},
    ):
        with pytest.raises(TaskError, match="expected 0, 0 and at least 1"):
            check_tests(task.model_copy(update=change))


@pytest.mark.asyncio
async def test_evidence_is_gathered_again(built: TaskStore, seeded_layers: LayerStore, backend: SandboxBackend) -> None:
    for task in (built.load(source="mutations")[0], built.load(source="releases")[0]):
        evidence = await gather_evidence(task, seeded_layers, backend, num_runs=2)
        assert evidence.certificate(task.fail_to_pass, task.pass_to_pass).is_valid
        unrepaired = task.model_copy(update={"gold_files": {}})
        evidence = await gather_evidence(unrepaired, seeded_layers, backend, num_runs=1)
        certificate = evidence.certificate(task.fail_to_pass, task.pass_to_pass)
        assert (certificate.num_empty_failed, certificate.num_gold_passed) == (1, 0)


@pytest.mark.asyncio
async def test_the_agents_tree_shows_the_failure_and_nothing_hidden(
    built: TaskStore, seeded_layers: LayerStore, backend: SandboxBackend
) -> None:
    task = built.load(source="mutations")[0]
    spec = task_layers(task, seeded_layers).spec(dict(task.base_files))
    run = await run_fresh(backend, spec, task_request(task))
    for test_id in task.fail_to_pass:
        expected = TestOutcome.FAILED if test_id in task.visible_tests else TestOutcome.MISSING
        assert run.outcome(test_id) is expected
    assert run.passes(tuple(test_id for test_id in task.visible_tests if test_id in task.pass_to_pass))


def test_a_repair_cannot_touch_the_tests(built: TaskStore) -> None:
    task = built.load()[0]
    forged = dict.fromkeys(task.test_paths, "def test_a(): pass\n") | {"new.py": "x = 1\n", "gone.py": None}
    files = graded_files(task, forged)
    assert set(files).isdisjoint(task.test_paths)
    assert files["new.py"] == "x = 1\n"
    assert files["gone.py"] is None


def test_layers_of_another_python_or_format_are_refused(built: TaskStore, seeded_layers: LayerStore) -> None:
    task: Task = built.load()[0]
    other = task.environment.model_copy(update={"python": "2.7.18"})
    with pytest.raises(TaskError, match=r"Python 2\.7\.18"):
        task_layers(task.model_copy(update={"environment": other}), seeded_layers)
    with pytest.raises(TaskError, match="build the tasks again"):
        task_layers(task.model_copy(update={"base_tree": "other"}), seeded_layers)


def test_layers_of_an_imported_task_are_those_of_its_build(task: Task, tmp_path: Path) -> None:
    """Its lock has no hashes, so that no environment could be made of it."""
    store = LayerStore(tmp_path)
    folders = [store.build_once(kind, "a" * 64, lambda place: None) for kind in ("environments", "trees")]
    environment = task.environment.model_copy(update={"lock": "six==1.16.0\n", "digest": "a" * 64})
    imported = task.model_copy(update={"source": "imported", "environment": environment, "base_tree": "a" * 64})
    assert list(plain_layers(imported, store)) == folders
