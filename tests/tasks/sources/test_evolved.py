"""Bugs of failed repairs, of a model and of a plan become tasks by one way, and come back from a manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from repairgym.config.tasks import PlanConfig, TasksConfig
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import check_tests
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import Rebuilder
from repairgym.tasks.mutation.mutants import MutableFunction
from repairgym.tasks.mutation.plan import Plan
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.evolved import LeftBug, Order, make_evolved, text_digest
from repairgym.tasks.store import TaskStore

PATH = "src/tinycalc/numbers.py"
FURTHER = ("return total / len(values)", "return total * len(values)")
Make = Callable[..., SourceResult]


@pytest.fixture
def task(built: TaskStore) -> Task:
    """A task with another broken function than `mean`."""
    return next(task for task in built.load(source="mutations") if task.location and task.location.name != "mean")


@pytest.fixture
def order(task: Task) -> Order:
    known = frozenset({text_digest(PATH, task.base_files[PATH])})
    return Order(Plan(generation=1), PlanConfig(), num_tries=6, known=known)


@pytest.fixture
def context(
    tinycalc: Package, seeded_layers: LayerStore, backend: SandboxBackend, write_config: Callable[..., TasksConfig]
) -> BuildContext:
    return BuildContext(seeded_layers, backend, write_config(tinycalc), 1)


@pytest.mark.asyncio
async def test_a_failed_repair_becomes_a_task_of_both_bugs(
    task: Task, order: Order, context: BuildContext, tinycalc: Package, tmp_path
) -> None:
    left = LeftBug(task, (task.base_files[PATH] or "").replace(*FURTHER))
    result, rejected = await make_evolved(tinycalc, context, replace(order, left=(left,)))
    assert rejected == []
    (made,) = result.tasks
    check_tests(made)
    assert made.certificate.is_valid
    assert made.base_files[PATH] == left.text
    assert made.gold_files == task.gold_files
    assert made.labels["operator"] == "failed_repair"
    assert int(made.labels["difficulty"]) >= 2
    assert made.labels["generation"] == "1"
    assert set(made.fail_to_pass) > set(task.fail_to_pass) - set(made.pass_to_pass)
    assert set(made.visible_tests) < {*made.fail_to_pass, *made.pass_to_pass}
    _check_rebuilt([made], tinycalc, context.store, tmp_path)


@pytest.mark.asyncio
async def test_only_bugs_with_an_outcome_count_as_tried(
    task: Task, order: Order, context: BuildContext, tinycalc: Package
) -> None:
    broken = task.base_files[PATH] or ""
    further = [broken.replace(*FURTHER), broken.replace(FURTHER[0], "return total - len(values)"), broken + "x = 1\n"]
    origin = task.provenance.model_copy(update={"sdist_sha256": "0" * 64})
    lost = LeftBug(task.model_copy(update={"provenance": origin}), broken + "y = 1\n")
    survivor = LeftBug(task, broken.replace("Arithmetic mean", "Some mean"))
    # The first bug makes the only task that is wanted; the others were begun beside it, or could have been.
    for num_concurrent in (1, 8):
        config = context.config.model_copy(update={"num_concurrent": num_concurrent})
        left = (survivor, *(LeftBug(task, text) for text in further), lost)
        result, rejected = await make_evolved(tinycalc, replace(context, config=config), replace(order, left=left))
        assert [made.base_files[PATH] for made in result.tasks] == further[:1]
        assert rejected == [text_digest(PATH, survivor.text)]
        assert result.funnel == {"bugs_tried": 2, "edit_is_no_bug_alone": 1, "kept": 1}


def _check_rebuilt(tasks: list[Task], package: Package, layers: LayerStore, folder) -> None:
    (folder / "manifest.toml").write_text('entries = "real"\ntest_timeout_s = 40.0\ntimeout_s = 120.0\n')
    manifest = TaskManifest(folder / "manifest.toml")
    assert manifest.add(tasks, {package.name: package}) == {"recorded": len(tasks)}
    content = manifest.load(package.name)
    rebuilder = Rebuilder(manifest, content, layers)
    again = {entry.id: rebuilder.rebuild(entry) for entry in content.entries.values()}
    assert {task.id: task.model_dump_json() for task in tasks} == {i: t.model_dump_json() for i, t in again.items()}


@pytest.mark.asyncio
async def test_what_no_task_is_made_of(task: Task, order: Order, context: BuildContext, tinycalc: Package) -> None:
    broken, gold = task.base_files[PATH] or "", task.gold_files[PATH] or ""
    texts = {
        "no_further_bug": broken,
        "no_change": gold,
        "does_not_parse": broken + "def f(:\n",
        "gives_itself_away": broken.replace("if not values", "if False"),
        "edit_is_no_bug_alone": broken.replace("Arithmetic mean", "Some mean"),
        "known_already": broken.replace(*FURTHER),
    }
    origin = task.provenance.model_copy(update={"sdist_sha256": "0" * 64})
    left = [LeftBug(task, text) for text in texts.values()]
    left.append(LeftBug(task.model_copy(update={"provenance": origin}), broken))
    known = order.known | {text_digest(PATH, texts["known_already"])}
    result, rejected = await make_evolved(tinycalc, context, replace(order, left=tuple(left), known=known, num_tries=0))
    assert set(rejected) == {text_digest(PATH, bug.text) for bug in left} - known
    assert not result.tasks
    assert result.funnel == {**dict.fromkeys(texts, 1), "other_version": 1, "bugs_tried": 2}


@pytest.mark.asyncio
async def test_the_plan_makes_bugs_of_several_edits_each_of_which_is_one(
    order: Order, context: BuildContext, tinycalc: Package, seeded_layers: LayerStore, tmp_path
) -> None:
    # Only bugs of three edits: others weigh a thousandth of them.
    plan = Plan(generation=2, effects={"num_edits 1": -9.0, "num_edits 2": -9.0, "num_edits 3": 9.0})
    order = replace(order, plan=plan, bounds=PlanConfig(floor=0.001), num_tries=30)
    result, _ = await make_evolved(tinycalc, replace(context, quota=2), order)
    assert result.tasks
    assert {task.labels["difficulty"] for task in result.tasks} == {"3"}
    assert all(task.certificate.is_valid for task in result.tasks)
    _check_rebuilt(result.tasks, tinycalc, seeded_layers, tmp_path)
    again, _ = await make_evolved(tinycalc, replace(context, quota=2), order)
    assert [task.id for task in again.tasks] == [task.id for task in result.tasks]


@pytest.mark.asyncio
async def test_a_model_proposes_and_what_it_says_is_checked(
    order: Order, context: BuildContext, tinycalc: Package, seeded_layers: LayerStore, tmp_path
) -> None:
    asked: list[str] = []

    async def propose(function: MutableFunction) -> str | Drop:
        asked.append(function.span.qualified_name)
        if function.span.qualified_name != "clamp":
            return Drop("proposal_unreadable", "no")
        return function.source.replace("        return low\n", "        return value\n")

    order = replace(order, num_proposals=10, num_tries=0)
    result, _ = await make_evolved(tinycalc, replace(context, quota=5), order, propose)
    assert "clamp" in asked
    assert result.funnel["proposal_unreadable"] == len(asked) - 1
    (made,) = result.tasks
    assert made.labels["operator"] == "proposed_edit"
    assert made.provenance.recipe.startswith(f"{PATH} clamp ")
    _check_rebuilt(result.tasks, tinycalc, seeded_layers, tmp_path)
