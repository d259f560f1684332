"""Audits of tasks of a package of npm: variants, and what its tests accept and reject."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.config.sandbox import SandboxConfig
from repairgym.config.tasks import MutationConfig, ReleaseConfig, TasksConfig
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.audit.audit import AuditBounds, TaskAudit, audit_tasks
from repairgym.tasks.audit.results import count_by, count_by_kind, with_accuracy
from repairgym.tasks.audit.suite import TreeSuite, read_suite, suite_files
from repairgym.tasks.audit.variants import VariantBounds, repaired_functions, right_variants, wrong_variants
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext
from repairgym.tasks.sources.mutations import make_mutations
from repairgym.tasks.sources.releases import make_releases

FILE = "test/index.test.js"
BOUNDS = AuditBounds(variants=VariantBounds(operators=4, rewrites=2), num_suite_runs=2, seconds_per_task=300)


async def made_tasks(tinymath: tuple[NpmPackage, LayerStore, Path], backend: SandboxBackend) -> list[Task]:
    package, store, folder = tinymath
    config = TasksConfig(
        locks=str(folder / "locks"), test_timeout_s=10, run_timeout_s=30, num_certificate_runs=1,
        mutations=MutationConfig(num_per_function=2), releases=ReleaseConfig(splits=("train",)),
    )  # fmt: skip
    context = BuildContext(store, backend, config, 4)
    return [*(await make_mutations(package, context)).tasks, *(await make_releases(package, context)).tasks]


@pytest.mark.asyncio
async def test_an_audit_tries_variants_in_node_and_counts_what_it_could_not_do(
    tinymath: tuple[NpmPackage, LayerStore, Path],
) -> None:
    backend = create_backend(SandboxConfig())
    try:
        tasks = await made_tasks(tinymath, backend)
        released = next(task for task in tasks if task.source == "releases")
        check_variants(released, tasks, task_layers(released, tinymath[1]).tree)
        suite = await read_suite(tasks, tinymath[1], backend, 2)
        check_suite(suite, tasks)
        thin = released.model_copy(
            update={"fail_to_pass": (f"{FILE}::clamp::takes (equal) bounds",), "pass_to_pass": ()}
        )
        audits = {}
        async for task, audit in audit_tasks([thin], tasks, tinymath[1], backend, BOUNDS, 1):
            assert isinstance(audit, TaskAudit), audit
            audits[task.id] = audit
    finally:
        await backend.close()
    check_audit(thin, audits)


def check_variants(released: Task, tasks: list[Task], tree: Path) -> None:
    assert [place.span.qualified_name for place in repaired_functions(released)] == ["clamp"]
    siblings = wrong_variants(released, tasks, VariantBounds(operators=0), tree)
    assert [variant.kind for variant in siblings] == ["sibling_function"] * 2 + ["sibling_file"] * 2
    wrong = wrong_variants(released, tasks, VariantBounds(operators=50), tree)
    gold = released.gold_files["index.js"] or ""
    first, last = gold.split("\n").index("function clamp(value, low, high) {") + 1, gold.split("\n").index("}") + 1
    lines = [int(v.detail.split()[1].partition(":")[0]) for v in wrong if v.kind == "operator"]
    assert all(first <= line <= last for line in lines)
    assert all(v.places == {("index.js", first)} for v in wrong if v.kind == "operator")
    right = right_variants(released, VariantBounds())
    texts = [variant.key for variant in [*wrong, *right]]
    broken = tuple((path, released.base_files[path]) for path in sorted(released.gold_files))
    assert len({tuple(sorted(released.gold_files.items())), broken, *texts}) == len(texts) + 2
    assert [variant.detail for variant in right] == ["index.js clamp: else_after_return"]


def check_suite(suite: TreeSuite, tasks: list[Task]) -> None:
    assert suite_files(tasks, suite.layers.tree) == (FILE,)
    assert len(suite.durations_s) == 7
    assert suite.calls == ()
    clamp = tasks[-1].gold_files["index.js"] or ""
    line = clamp.split("\n").index("function clamp(value, low, high) {") + 1
    # node:test tells what a file executes, and nothing of a single test.
    assert len(suite.of_functions({("index.js", line)})) == 7
    # A file runs whole: the time of all of its tests counts.
    assert len(suite.seconds_of([f"{FILE}::sum of nothing"], is_whole=True)) == 7
    assert len(suite.seconds_of([f"{FILE}::sum of nothing"], is_whole=False)) == 1


def check_audit(thin: Task, audits: dict[str, TaskAudit]) -> None:
    audit = audits[thin.id]
    assert audit.count("rejected", "untried") == 0
    assert audit.count("accepted") == 1
    assert audit.count("refuted") > 0
    # One test is left of the task's own: the suite tells what it cannot.
    told = [outcome for outcome in audit.outcomes if outcome.status == "refutable"]
    assert told
    assert all(outcome.told_by.startswith(f"{FILE}::") and outcome.patch for outcome in told)
    assert audit.lacking == ("half_patch",)
    (row,) = count_by([audit], lambda audit: "all")
    assert (row.num_unprobed, row.num_lacking) == (audit.count("unknown"), 0)
    kinds = {row.group: row for row in count_by_kind([audit])}
    assert (kinds["half_patch"].num_tasks, kinds["half_patch"].num_lacking) == (0, 1)
    assert kinds["rewrite"].num_accepted == 1
    (saved,) = with_accuracy([thin], audits)
    assert saved.certificate.accuracy is not None
    assert saved.certificate.accuracy.num_right == 1
