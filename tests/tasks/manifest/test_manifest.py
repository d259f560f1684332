from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repairgym.config.tasks import RebuildConfig
from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.records import Task
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest, format_ranges, parse_ranges
from repairgym.tasks.manifest.rebuild import Rebuilder, rebuild_manifest
from repairgym.tasks.store import TaskStore
from repairgym.testing.scripted import scripted_task


def make_manifest(folder: Path) -> TaskManifest:
    (folder / "manifest.toml").write_text('entries = "real"\n')
    return TaskManifest(folder / "manifest.toml")


@pytest.fixture
def manifest(tmp_path: Path, built: TaskStore, tinycalc: Package) -> TaskManifest:
    """A manifest of every task of the fixture's build."""
    made = make_manifest(tmp_path)
    tasks = built.load()
    assert {task.source for task in tasks} == {"mutations", "releases"}
    assert made.add(tasks, {"tinycalc": tinycalc}) == {"recorded": len(tasks)}
    return made


def test_a_new_manifest_has_the_deadlines_of_its_tasks(built: TaskStore, tinycalc: Package, tmp_path: Path) -> None:
    tasks = built.load()
    made = TaskManifest.create(tmp_path / "own" / "mine.toml", tasks)
    assert made.settings.entries == "mine"
    assert made.settings.test_timeout_s == max(task.test_timeout_s for task in tasks)
    assert made.add(tasks, {"tinycalc": tinycalc}) == {"recorded": len(tasks)}
    assert list(TaskManifest(tmp_path / "own" / "mine.toml").load("tinycalc").entries) == [task.id for task in tasks]
    for path, some in ((tmp_path / "mine", tasks), (tmp_path / "none.toml", ())):
        with pytest.raises(InputError, match=r"ends with \.toml, and tasks"):
            TaskManifest.create(path, some)


def test_a_package_whose_entry_changed_is_not_recorded_beside_its_earlier_tasks(
    built: TaskStore, tinycalc: Package, tmp_path: Path
) -> None:
    made, (first, *others) = make_manifest(tmp_path), built.load(source="mutations")
    assert made.add([first], {"tinycalc": tinycalc}) == {"recorded": 1}
    before = made.package_path("tinycalc").read_text()
    for change in ({"split": "test"}, {"plugins": ("pytest_mock",)}, {"source_paths": ("lib",)}):
        with pytest.raises(InputError, match=f"other {next(iter(change))} .*record it into another manifest"):
            made.add([others[0].model_copy(update=change)], {"tinycalc": tinycalc})
    assert made.package_path("tinycalc").read_text() == before
    # A release's hunks are numbered over all sources; a mutation names its file.
    further = tinycalc.model_copy(update={"sources": (*tinycalc.sources, "more/*.py"), "requirements": ("six",)})
    with pytest.raises(InputError, match="sources"):
        made.add(built.load(source="releases"), {"tinycalc": further})
    # What comes from the manifest's own entries can be recorded again, whatever the catalogue says now.
    assert made.add([first, *others], {"tinycalc": further}, True) == {"replaced": 1, "recorded": len(others)}


def test_a_line_separator_in_a_text_is_no_line_of_a_manifest(
    built: TaskStore, tinycalc: Package, tmp_path: Path
) -> None:
    made, task = make_manifest(tmp_path), built.load()[0]
    told = task.model_copy(update={"issue": "one\u2028two\x85three"})
    made.add([told], {"tinycalc": tinycalc})
    assert made.load("tinycalc").entries[task.id].issue == told.issue


def by_id(tasks: tuple[Task, ...]) -> dict[str, Task]:
    return {task.id: task for task in tasks}


@pytest.mark.parametrize("listed", [[0, 1, 2, 7], [3], [], [5, 4, 6, 7]])
def test_ranges_keep_numbers_and_order(listed: list[int]) -> None:
    assert list(parse_ranges(format_ranges(listed))) == listed


def test_the_digest_of_a_task_is_the_one_that_was_recorded() -> None:
    # Every entry of the shipped manifest holds such a digest. A new field of `Task` or of a record in it changes this
    # value, and no package would be rebuilt: leave the field's default out in `content_digest`.
    assert content_digest(scripted_task()) == "d7f51b08649403a8f044aceddad2cc9f"


def test_a_manifest_brings_the_tasks_back(
    manifest: TaskManifest, built: TaskStore, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    first = rebuild_manifest(manifest, tmp_path / "first", RebuildConfig(), seeded_layers).load()
    again = rebuild_manifest(manifest, tmp_path / "again", RebuildConfig(), seeded_layers).load()
    assert [task.digest() for task in first] == [task.digest() for task in again]
    made = by_id(built.load())
    assert made.keys() == by_id(first).keys()
    for task in first:
        # The deadlines are those of the manifest.
        assert content_digest(task) == content_digest(manifest.with_deadlines(made[task.id]))
        assert task.certificate == made[task.id].certificate
        assert (task.test_timeout_s, task.timeout_s) == (3.0, 6.0)


class NoIndex:
    """An index that has nothing."""

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        raise PackageNotFoundError(f"no {sdist.name}")


def test_packages_are_rebuilt_side_by_side_and_a_killed_call_goes_on(
    manifest: TaskManifest, built: TaskStore, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    page = manifest.package_path("tinycalc")
    shutil.copy(page, manifest.package_path("tinycopy"))
    folder, config, seen = tmp_path / "tasks", RebuildConfig(num_workers=2), []
    tasks = rebuild_manifest(manifest, folder, config, seeded_layers, seen.append).load()
    assert len(tasks) == 2 * len(built.load())
    assert {done.package for done in seen} == {"tinycalc", "tinycopy"}
    assert (seen[-1].num_done, seen[-1].num_tasks) == (2, len(tasks))
    # As after a kill: the folder has its finished packages only.
    for path in folder.glob("*.json*"):
        path.unlink()
    nothing = LayerStore(tmp_path / "nothing", NoIndex())
    assert rebuild_manifest(manifest, folder, config, nothing).load() == tasks
    page.write_text(page.read_text() + "\n")
    store = rebuild_manifest(manifest, folder, config, nothing)
    assert len(store.load()) == len(tasks) // 2
    assert store.load_document("funnel.json")["total"]["rebuild"]["skipped_not_on_index"] == len(tasks) // 2


def test_further_failing_tests_that_no_file_defines_are_not_hidden(
    built: TaskStore, tinycalc: Package, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    made = make_manifest(tmp_path)
    tasks = []
    for task in built.load():
        path = task.test_paths[-1]
        further = (f"{path}::TestOfMetaclass::test_made", f"{path}::test_of_a_loop[1]")
        tasks.append(task.model_copy(update={"fail_to_pass": task.fail_to_pass + further}))
    made.add(tasks, {"tinycalc": tinycalc})
    rebuilt = by_id(rebuild_manifest(made, tmp_path / "rebuilt", RebuildConfig(), seeded_layers).load())
    assert {i: task.base_files for i, task in rebuilt.items()} == {task.id: task.base_files for task in tasks}


def test_a_manifest_holds_no_code_of_the_package(manifest: TaskManifest, built: TaskStore) -> None:
    text = manifest.package_path("tinycalc").read_text()
    for task in built.load():
        for source in filter(None, (*task.gold_files.values(), *task.base_files.values())):
            assert source not in text
        longest = max((line for line in task.gold_patch.splitlines() if line.startswith("-")), key=len)
        assert longest[1:].strip() not in text


def test_what_is_recorded_stays_when_more_comes(
    manifest: TaskManifest, built: TaskStore, tinycalc: Package, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    tasks = built.load()
    (tmp_path / "other").mkdir()
    half = make_manifest(tmp_path / "other")
    half.add(tasks[::2], {"tinycalc": tinycalc})
    before = half.package_path("tinycalc").read_text().splitlines()
    assert half.add(tasks, {"tinycalc": tinycalc}) == {
        "already_there": len(tasks[::2]),
        "recorded": len(tasks[1::2]),
    }
    after = half.package_path("tinycalc").read_text().splitlines()
    assert after[2 : len(before)] == before[2:]
    assert (
        by_id(rebuild_manifest(half, tmp_path / "all", RebuildConfig(), seeded_layers).load()).keys()
        == by_id(tasks).keys()
    )


def test_other_packages_and_histories_are_counted(manifest: TaskManifest, built: TaskStore) -> None:
    task = built.load()[0]
    history = task.model_copy(update={"source": "history"})
    assert manifest.add([task, history], {}) == {"package_not_in_catalogue": 1, "needs_its_clone": 1}


def test_a_task_that_comes_out_differently_is_no_task_of_the_manifest(
    manifest: TaskManifest, built: TaskStore, tmp_path: Path, seeded_layers: LayerStore
) -> None:
    content = manifest.load("tinycalc")
    entry = next(iter(content.entries.values()))
    with pytest.raises(TaskError, match="makes another task"):
        Rebuilder(manifest, content, seeded_layers).rebuild(entry.model_copy(update={"issue": "another report"}))
    path = manifest.package_path("tinycalc")
    path.write_text(path.read_text().replace(entry.content, "0" * 32))
    store = rebuild_manifest(manifest, tmp_path / "tasks", RebuildConfig(), seeded_layers)
    assert entry.id not in by_id(store.load())
    assert store.load_document("funnel.json")["total"]["rebuild"]["rebuilt"] == len(content.entries) - 1


@pytest.mark.parametrize(
    "told", ["src/tinycalc/numbers.py no_such_function 1:1: < -> <=", "hunks 99 of 1 -> 2 reverted"]
)
def test_an_unknown_recipe_is_an_error(
    manifest: TaskManifest, built: TaskStore, told: str, seeded_layers: LayerStore
) -> None:
    content = manifest.load("tinycalc")
    source = "releases" if told.startswith("hunks") else "mutations"
    entry = next(entry for entry in content.entries.values() if entry.source == source)
    path = entry.recipe.split(" ")[0]
    entry = entry.model_copy(update={"recipe": told.replace("PATH", path)})
    with pytest.raises(TaskError, match="cannot make"):
        Rebuilder(manifest, content, seeded_layers).rebuild(entry)


def test_broken_manifests_say_what_to_do(manifest: TaskManifest, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tasks of nothing"):
        rebuild_manifest(manifest, tmp_path / "tasks", RebuildConfig(packages=("nothing",)))
    manifest.package_path("tinycalc").write_text("{}\n")
    with pytest.raises(InputError, match="no part of a task manifest"):
        manifest.load("tinycalc")
    shutil.rmtree(manifest.locks)
    with pytest.raises(InputError, match="no task manifest"):
        TaskManifest(tmp_path / "missing.toml")
