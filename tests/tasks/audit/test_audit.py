"""Audits and stronger tests of the fixture package, in sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.audit.audit import AuditBounds, TaskAudit, TaskTrial, TreeAudit, audit_key, audit_tasks
from repairgym.tasks.audit.differential import Survivor, make_tests
from repairgym.tasks.audit.results import audit_lines, count_by, with_accuracy
from repairgym.tasks.audit.strengthen import (
    StrengthenBounds,
    certified,
    strengthen_tasks,
    with_differential_tests,
    with_tests,
)
from repairgym.tasks.audit.suite import TreeSuite, by_tree, read_suite
from repairgym.tasks.audit.variants import Variant, VariantBounds, right_variants, wrong_variants
from repairgym.tasks.build.validation import gather_evidence, graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest
from repairgym.tasks.manifest.rebuild import Rebuilder
from repairgym.tasks.store import TaskStore

BOUNDS = AuditBounds(variants=VariantBounds(operators=3, siblings=1, rewrites=1), num_suite_runs=1)


@pytest.fixture
def tasks(built: TaskStore) -> list[Task]:
    return [task for task in built.load() if task.source == "mutations"]


async def tree_of(tasks: list[Task], layers: LayerStore, backend: SandboxBackend) -> TreeAudit:
    return TreeAudit(await read_suite(tasks, layers, backend, 1), backend, layers, tasks)


def thin(task: Task) -> Task:
    """The task with its first failing test only."""
    return task.model_copy(update={"fail_to_pass": task.fail_to_pass[:1], "pass_to_pass": ()})


def test_variants_differ_from_gold_broken_and_each_other(tasks: list[Task]) -> None:
    for task in tasks:
        wrong = wrong_variants(task, tasks, VariantBounds(), Path())
        texts = [variant.key for variant in [*wrong, *right_variants(task, VariantBounds())]]
        gold = tuple(sorted(task.gold_files.items()))
        broken = tuple((path, task.base_files[path]) for path in sorted(task.gold_files))
        assert len({gold, broken, *texts}) == len(texts) + 2
        assert wrong == wrong_variants(task, tasks, VariantBounds(), Path())
        assert {"operator", "rewrite"} <= {variant.kind for variant in [*wrong, *right_variants(task, VariantBounds())]}
        other = wrong_variants(task, tasks, VariantBounds(seed=1), Path())
        assert other != wrong


@pytest.mark.asyncio
async def test_an_audit_counts_what_tests_accept_and_reject(
    tasks: list[Task], seeded_layers: LayerStore, backend: SandboxBackend, tmp_path: Path
) -> None:
    chosen = [thin(tasks[0])]
    file = audit_lines(tmp_path / "audit.jsonl")
    async for task, audit in audit_tasks(chosen, tasks, seeded_layers, backend, BOUNDS):
        assert isinstance(audit, TaskAudit)
        file.add(audit)
        assert audit.key == audit_key(task, BOUNDS)
        assert audit.count("rejected", "untried") == 0
        assert audit.count("refuted") > 0
        survivors = [outcome for outcome in audit.outcomes if outcome.status in ("refutable", "unknown")]
        assert all(outcome.patch for outcome in survivors)
    (path := tmp_path / "audit.jsonl").write_bytes(path.read_bytes() + b'{"task')
    known = {audit.task_id: audit for audit in file.load().values()}
    assert known.keys() == {chosen[0].id}
    row = count_by(known.values(), lambda audit: "all")[0]
    assert (row.num_tasks, row.num_without_pass_to_pass, row.num_rejected) == (1, 1, 0)
    plain, audited = chosen[0], with_accuracy(chosen, known)[0]
    assert audited.certificate.accuracy == known[plain.id].accuracy
    # The audit of a task is no part of what it depends on, and its absence is in no digest.
    assert audit_key(audited, BOUNDS) == audit_key(plain, BOUNDS)
    assert "accuracy" not in plain.certificate.model_dump()


@pytest.mark.asyncio
async def test_what_a_run_has_shown_is_not_run_again(
    tasks: list[Task], seeded_layers: LayerStore, backend: SandboxBackend
) -> None:
    task, other = tasks[:2]
    tree = TreeAudit(TreeSuite(task_layers(task, seeded_layers), {}, {}), backend, seeded_layers, tasks)
    trial, bug = TaskTrial(tree, task), {path: other.base_files[path] for path in other.gold_files}
    assert await trial.refuting_test(bug, other.fail_to_pass) == other.fail_to_pass[0]
    assert trial.run_s == 0
    assert await trial.refuting_test(task.gold_files, task.fail_to_pass) == ""
    once_s = trial.run_s
    assert once_s > 0
    assert await trial.refuting_test(task.gold_files, task.fail_to_pass) == ""
    assert trial.run_s == once_s
    gold = await run_fresh(backend, tree.spec(task, task.gold_files), task_request(task))
    part = gold.model_copy(update={"results": {}})
    evidence = await gather_evidence(task, seeded_layers, backend, 2, [part, gold, gold])
    assert len(evidence.gold) == 2
    assert evidence.gold[1] is gold
    assert evidence.certificate(task.fail_to_pass, task.pass_to_pass).is_valid


@pytest.mark.asyncio
async def test_a_slow_start_refutes_nothing(
    tasks: list[Task], seeded_layers: LayerStore, backend: SandboxBackend
) -> None:
    task, layers = tasks[0], task_layers(tasks[0], seeded_layers)
    slow = {path: f"import time\ntime.sleep(3)\n{text}" for path, text in task.gold_files.items()}
    durations_s = dict.fromkeys(task.fail_to_pass, 0.01)
    for start_s, told_by in ((0.0, task.fail_to_pass[0]), (3.0, "")):
        suite = TreeSuite(layers, durations_s, {}, start_s=start_s)
        trial = TaskTrial(TreeAudit(suite, backend, seeded_layers, tasks), task)
        assert await trial.refuting_test(slow, task.fail_to_pass) == told_by


def clamp_survivor(task: Task) -> Variant:
    """A variant that the fixture's whole suite accepts: only values one above the bound are wrong."""
    path, gold = next(iter(task.gold_files.items()))
    assert gold is not None
    text = gold.replace("if value > high:", "if value > high + 1:")
    assert text != gold
    line = gold.splitlines().index("def clamp(value, low, high):") + 1
    return Variant("operator", "by hand", {path: text}, frozenset({(path, line)}))


@pytest.mark.asyncio
async def test_a_survivor_of_the_whole_suite_falls_to_a_differential_test(
    tasks: list[Task], seeded_layers: LayerStore, backend: SandboxBackend
) -> None:
    tree = await tree_of(tasks, seeded_layers, backend)
    task, variant = tasks[0], clamp_survivor(tasks[0])
    trial = TaskTrial(tree, task)
    outcome = await trial.try_wrong(variant)
    assert outcome.status == "refutable"
    assert outcome.told_by.startswith("probe: tinycalc.numbers.clamp(")
    survivor = Survivor(task, variant, tuple(await tree.probe(task, variant) or ()))
    tests = await make_tests([survivor], tree, num_runs=2)
    assert tests.path == "tests/test_tinycalc_calls.py"
    assert tests.about(variant.places) == tuple(tests.texts)
    assert len(tests.texts) == 1
    stronger = await with_differential_tests(task, tests, set(variant.places), tree)
    assert stronger.pinned_files == {tests.path: tests.text}
    assert stronger.base_files[tests.path] is None
    assert tests.path not in graded_files(stronger)
    assert (await TaskTrial(tree, stronger).try_wrong(variant)).status == "refuted"
    evidence = await gather_evidence(stronger, seeded_layers, backend, 1)
    assert evidence.certificate(stronger.fail_to_pass, stronger.pass_to_pass).is_valid
    # Of added tests that do not pass on gold nothing stays, their files neither.
    lost = {
        name: tuple(i for i in getattr(stronger, name) if tests.path not in i)
        for name in ("fail_to_pass", "pass_to_pass")
    }
    wrong = with_tests(
        stronger.model_copy(update=lost), (), (f"{tests.path}::test_missing", "tests/test_gone.py::test_a"), tree
    )
    kept, outcome = await certified(task, wrong, tree, 1)
    assert outcome == "strengthened"
    same = {"fail_to_pass", "pass_to_pass", "test_paths", "pinned_files", "base_tree", "base_files"}
    assert kept.model_dump(include=same) == task.model_dump(include=same)


@pytest.mark.asyncio
async def test_stronger_tasks_keep_what_they_are_and_can_be_recorded(
    tasks: list[Task], seeded_layers: LayerStore, backend: SandboxBackend, tinycalc: Package, tmp_path: Path
) -> None:
    tree = await tree_of(tasks, seeded_layers, backend)
    chosen = [thin(task) for task in tasks[:2]]
    bounds = StrengthenBounds(variants=VariantBounds(operators=1, siblings=0, half_patches=0), seconds=5.0, num_runs=2)
    done = await strengthen_tasks(chosen, tree, bounds, 2)
    assert done.funnel["strengthened"] == 2
    assert done.funnel["without_pass_to_pass"] == 0
    variant = clamp_survivor(tasks[0])
    survivor = Survivor(tasks[0], variant, tuple(await tree.probe(tasks[0], variant) or ()))
    tests = await make_tests([survivor], tree, num_runs=1)
    stronger = [await with_differential_tests(task, tests, set(variant.places), tree) for task in done.tasks]
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest = TaskManifest(tmp_path / "manifest.toml")
    packages = {"tinycalc": tinycalc}
    assert manifest.add(tasks, packages) == {"recorded": len(tasks)}
    assert manifest.add(stronger, packages, is_replacing=True) == {"replaced": 2}
    content = manifest.load("tinycalc")
    for old, new in zip(chosen, stronger, strict=True):
        same = {"id", "issue", "gold_patch", "gold_files", "visible_tests", "split", "location"}
        assert new.model_dump(include=same) == old.model_dump(include=same)
        assert set(old.fail_to_pass) <= set(new.fail_to_pass)
        assert new.pass_to_pass
        kept = {path: text for path, text in new.base_files.items() if path not in new.pinned_files}
        assert kept == old.base_files
        rebuilt = Rebuilder(manifest, content, seeded_layers).rebuild(content.entries[new.id])
        assert content_digest(rebuilt) == content_digest(manifest.with_deadlines(new))
    assert by_tree([*tasks, *stronger]) == [[*tasks, *stronger]]


def test_tests_within_a_time_are_the_smallest_that_fit() -> None:
    suite = TreeSuite(None, {"a": 0.3, "b": 0.1, "c": 0.2}, {"a": frozenset(), "b": frozenset({("p", 1)}),  # type: ignore[arg-type]
                                                            "c": frozenset({("p", 1), ("p", 2)})})  # fmt: skip
    assert suite.of_functions({("p", 1)}) == ("b", "c")
    assert suite.of_files({"p"}) == ("b", "c")
    assert suite.of_files({"elsewhere"}) == ("a", "b", "c")
    assert suite.within(("a", "b", "c"), 0.45) == ("a", "b")
