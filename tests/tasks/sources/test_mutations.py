from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.tasks.audit.variants import repaired_functions
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.mutation.mutants import Mutant, mutable_functions, mutants
from repairgym.tasks.sources.mutations import RECIPE_SEPARATOR, MutantEvidence, grouped
from repairgym.tasks.store import FUNNEL_FILE, TaskStore
from repairgym.tasks.synthetic import NUM_BUGS


@pytest.fixture(scope="module")
def several(
    tinycalc: Package,
    seeded_layers: LayerStore,
    write_config: Callable[..., TasksConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> TaskStore:
    """Tasks of two semantic or closed bugs each, told by their symptoms."""
    config = write_config(tinycalc)
    bounds = config.mutations.model_copy(
        update={"has_semantic_operators": True, "num_bugs": 2, "localizations": ("symptom",), "two_edit_share": 0.0}
    )
    config = config.model_copy(update={"sources": ("mutations",), "mutations": bounds})
    return build(config, tmp_path_factory.mktemp("several") / "tasks", seeded_layers)


def test_each_task_has_two_bugs_in_different_functions(several: TaskStore) -> None:
    tasks = several.load()
    assert tasks
    for task in tasks:
        assert task.labels[NUM_BUGS] == task.labels["difficulty"] == "2"
        recipes = task.provenance.recipe.split(RECIPE_SEPARATOR)
        names = {recipe.split(" ")[1] for recipe in recipes}
        assert len(names) == 2
        assert {place.span.qualified_name for place in repaired_functions(task)} == names
        assert task.location
        assert task.location.name == recipes[0].split(" ")[1]
        assert len(task.issue.split("\n\n")) >= 2
        assert task.labels["localization"] == "symptom"
        assert "numbers.py" not in task.issue


def test_functions_have_no_more_than_their_share_with_many_mutants_in_flight(
    tinycalc: Package, seeded_layers: LayerStore, write_config: Callable[..., TasksConfig], tmp_path: Path
) -> None:
    config = write_config(tinycalc)
    update = {"sources": ("mutations",), "num_concurrent": 12}
    one = config.mutations.model_copy(update={"num_per_function": 1})
    store = build(config.model_copy(update={**update, "mutations": one}), tmp_path / "tasks", seeded_layers)
    names = [task.location.name for task in store.load() if task.location]
    assert names
    assert len(names) == len(set(names))


def test_every_task_has_a_regression_test(several: TaskStore, built: TaskStore) -> None:
    tasks = (*several.load(), *built.load(source="mutations"))
    assert all(task.pass_to_pass and task.certificate.is_valid for task in tasks)


def test_a_manifest_brings_several_bugs_back(
    several: TaskStore, tinycalc: Package, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest, tasks = TaskManifest(tmp_path / "manifest.toml"), several.load()
    manifest.add(tasks, {"tinycalc": tinycalc})
    rebuilt = rebuild_manifest(manifest, tmp_path / "rebuilt", RebuildConfig(), seeded_layers).load()
    made = {task.id: content_digest(manifest.with_deadlines(task)) for task in tasks}
    assert {task.id: content_digest(task) for task in rebuilt} == made


@pytest.mark.parametrize(
    ("mutations", "settings", "reason", "told"),
    [
        ({"min_function_lines": 29}, {}, "functions_of_another_size", "min_function_lines=29, max_function_lines=30"),
        ({"min_edits": 99}, {}, "functions_with_few_edits", "min_edits=99"),
        ({}, {"run_timeout_s": 0.001}, "timed_out", "raise run_timeout_s=0.001"),
    ],
)
def test_a_package_without_tasks_names_the_setting(
    tinycalc: Package,
    seeded_layers: LayerStore,
    write_config: Callable[..., TasksConfig],
    tmp_path: Path,
    mutations: dict[str, int],
    settings: dict[str, float],
    reason: str,
    told: str,
) -> None:
    config = write_config(tinycalc)
    bounds = config.mutations.model_copy(update=mutations)
    update = {"sources": ("mutations",), "mutations": bounds, **settings}
    store = build(config.model_copy(update=update), tmp_path / "tasks", seeded_layers)
    funnel = store.load_document(FUNNEL_FILE)["total"]["mutations"]
    assert funnel[reason] > 0
    assert told in str(store.load_document(FUNNEL_FILE))


def evidence(mutant: Mutant) -> MutantEvidence:
    run = TestRun(results={"t.py::t": TestResult(outcome=TestOutcome.FAILED)}, exit_status=1)
    return MutantEvidence((mutant,), ("t.py::t",), [run], run, (run,))


def test_groups_take_mutants_of_different_functions_in_order() -> None:
    source = "def f(a):\n    b = a < 1\n    return b\n\n\ndef g(a):\n    b = a < 2\n    return b\n"
    f, g = (list(mutants(function, "0", 0.0)) for function in mutable_functions("m.py", source, (1, 30)))
    made = [evidence(mutant) for mutant in (f[0], f[1], g[0], f[2], g[1])]
    assert grouped(made, 2) == [(made[0], made[2]), (made[1], made[4])]
    assert grouped(made, 3) == []
