from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from repairgym.config.tasks import HistoryConfig, SplitLimits, TasksConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import (
    DiskFullError,
    IndexUnavailableError,
    InputError,
    PackageNotFoundError,
    RepairGymError,
    SandboxLostError,
    TaskError,
)
from repairgym.records import Task
from repairgym.tasks.build.build_tasks import Job, Progress, build, plan, skip_reason, spread
from repairgym.tasks.build.test_files import cuttable_names, file_of, function_id, functions_of
from repairgym.tasks.build.validation import check_tests
from repairgym.tasks.layers.catalogue import Package, Repository
from repairgym.tasks.layers.environments import lock_name
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS
from repairgym.tasks.store import TaskStore


class FileIndex:
    """An index that has one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path


def read_tree(task: Task, layers: LayerStore, package: Package) -> dict[str, str]:
    tree = layers.tree(package.sdist(task.provenance.version))
    return {path: (tree / path).read_text() for path in task.base_files}


def test_both_sources_give_certified_tasks(built: TaskStore) -> None:
    tasks = built.load()
    assert len(built.load(source="mutations")) == 4
    assert len(built.load(source="releases")) == 2
    assert all(task.certificate.is_valid for task in tasks)
    assert all(task.certificate.num_gold_runs == task.certificate.num_empty_runs == 3 for task in tasks)
    assert len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        check_tests(task)


def test_deadlines_follow_from_those_of_the_certificate(
    built: TaskStore, tinycalc: Package, write_config: Callable[..., TasksConfig]
) -> None:
    config = write_config(tinycalc)
    for task in built.load():
        assert task.test_timeout_s == 2 * config.test_timeout_s
        assert task.timeout_s == 2 * config.run_timeout_s


def test_hidden_tests_are_absent_from_the_agents_tree(built: TaskStore) -> None:
    for task in built.load():
        hidden = set(functions_of(set(task.fail_to_pass) - set(task.visible_tests)))
        assert hidden
        for test_id in hidden:
            path, _, name = test_id.partition("::")
            text = task.base_files[path]
            assert text is not None
            assert name not in cuttable_names(text)
            assert name.rpartition("::")[2] not in text
            assert name.rpartition("::")[2] not in task.issue


def test_mutation_tasks_show_one_failing_function_and_hide_the_others(built: TaskStore) -> None:
    for task in built.load(source="mutations"):
        visible = set(task.visible_tests)
        assert len(functions_of(visible & set(task.fail_to_pass))) == 1
        assert len(functions_of(task.fail_to_pass)) >= 2
        assert bool(visible & set(task.pass_to_pass)) == bool(task.pass_to_pass)


def test_the_gold_patch_leads_from_the_agents_base_to_the_release(
    built: TaskStore, seeded_layers: LayerStore, tinycalc: Package
) -> None:
    for task in built.load():
        pinned = read_tree(task, seeded_layers, tinycalc)
        assert task.gold_files == {path: pinned[path] for path in task.gold_files}
        assert set(task.gold_files).isdisjoint(task.test_paths)
        broken = {path: task.base_files[path] for path in task.gold_files}
        assert broken != task.gold_files
        assert task.gold_patch == unified_diff(broken, task.gold_files)


def test_every_task_has_the_default_build(built: TaskStore) -> None:
    steps = {tuple((step.kind, step.command, step.modules) for step in task.build) for task in built.load()}
    assert steps == {(("compile", (), ()), ("import", (), ("tinycalc",)))}


def test_location_is_the_broken_function(built: TaskStore) -> None:
    for task in built.load():
        assert task.location is not None
        lines = (task.base_files[task.location.path] or "").splitlines()
        span = lines[task.location.first_line - 1 : task.location.last_line]
        assert span[0].startswith(f"def {task.location.name}(")
        gold = (task.gold_files[task.location.path] or "").splitlines()
        assert "\n".join(span) not in "\n".join(gold)


def test_grading_restores_the_files_of_all_tests(built: TaskStore) -> None:
    for task in built.load():
        assert {file_of(test_id) for test_id in task.fail_to_pass + task.pass_to_pass} <= set(task.test_paths)


def test_release_tasks_are_the_separate_fixes_with_their_changelog(built: TaskStore) -> None:
    by_function = {task.location.name: task for task in built.load(source="releases") if task.location}
    count, mean = by_function["count_above"], by_function["mean"]
    # Proven checks of the hidden tests follow.
    assert count.issue == (
        "Fix `count_above`, which counted values equal to the bound (issue12).\n\n"
        "`count_above([3, 3, 3], 3)` should be `0`. Found: assert 3 == 0"
    )
    assert mean.issue == (
        "The mean of an empty list is 0 instead of a ZeroDivisionError.\n\n"
        "`mean([])` should be `0`. Found: ZeroDivisionError: division by zero"
    )
    assert {task.labels["issue_source"] for task in by_function.values()} == {"changelog"}
    assert functions_of(mean.fail_to_pass) == ("tests/test_numbers.py::test_mean_of_nothing",)
    assert not set(mean.visible_tests) & set(mean.fail_to_pass)
    assert mean.visible_tests
    assert "return 0" in mean.gold_patch
    assert "count" not in mean.gold_patch


def test_a_finished_unit_is_not_made_again_and_gives_the_same_tasks(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    before = built.load()
    config = TasksConfig.model_validate(json.loads((built.folder / "manifest.json").read_text())["config"])
    folder = Path(shutil.copytree(built.folder, tmp_path / "tasks"))
    units = sorted((folder / "units").iterdir())
    times = [path.stat().st_mtime_ns for path in units]
    begun: list[str] = []
    assert build(config, folder, LayerStore(seeded_layers.root), started=begun.append).load() == before
    assert [path.stat().st_mtime_ns for path in units] == times
    assert begun == []
    units[0].unlink()
    again = build(config, folder, LayerStore(seeded_layers.root), started=begun.append).load()
    assert ([task.id for task in again], begun) == ([task.id for task in before], [units[0].stem])


def test_a_killed_build_goes_on_and_a_seed_gives_the_same_tasks(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    config = TasksConfig.model_validate(json.loads((built.folder / "manifest.json").read_text())["config"])

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(config, tmp_path, seeded_layers, report=stop)
    done = [path.name for path in (tmp_path / "units").iterdir()]
    assert len(done) == 1
    times: list[str] = []
    again = build(config, tmp_path, seeded_layers, report=lambda progress: times.append(progress.unit.name))
    assert f"{times[0]}.jsonl" == done[0]
    without_time = [t.model_copy(update={"certificate": None}) for t in again.load()]
    assert without_time == [t.model_copy(update={"certificate": None}) for t in built.load()]


BUILD_WITH_TWO_PROCESSES = """
import sys
from pathlib import Path
from repairgym.config.tasks import TasksConfig
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.store import LayerStore

if __name__ == "__main__":
    config = TasksConfig.model_validate_json(sys.argv[1]).model_copy(update={"num_workers": 2})
    build(config, Path(sys.argv[2]), LayerStore(Path(sys.argv[3])))
"""


def test_a_killed_build_leaves_no_process(built: TaskStore, seeded_layers: LayerStore, tmp_path: Path) -> None:
    config = json.dumps(json.loads((built.folder / "manifest.json").read_text())["config"])
    program = tmp_path / "program.py"
    program.write_text(BUILD_WITH_TWO_PROCESSES)
    command = [sys.executable, str(program), config, str(tmp_path / "tasks"), str(seeded_layers.root)]
    with subprocess.Popen(command) as process:
        workers: list[psutil.Process] = []
        while len(workers) < 2 and process.poll() is None:
            time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [child for child in children if "--multiprocessing-fork" in child.cmdline()]
        process.kill()
    assert len(workers) >= 2
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_funnel_adds_up(built: TaskStore) -> None:
    funnel = json.loads((built.folder / "funnel.json").read_text())
    mutations = funnel["total"]["mutations"]
    assert mutations["mutants_run"] == sum(
        n for name, n in mutations.items() if name not in ("functions", "mutants_run")
    )
    assert mutations["kept"] == 4
    assert funnel["total"]["releases"]["kept"] == 2
    assert funnel["splits"] == {"mutations/train": 4, "releases/train": 2}


def test_a_package_that_cannot_be_built_leaves_the_others_alone(
    tinycalc: Package, seeded_layers: LayerStore, write_config: Callable[..., TasksConfig], tmp_path: Path
) -> None:
    broken = tinycalc.model_copy(update={"name": "broken", "tests": ("nowhere/*.py",), "releases": ()})
    packages = (broken, tinycalc.model_copy(update={"releases": ()}))
    store = build(write_config(*packages), tmp_path / "tasks", seeded_layers)
    assert {task.provenance.package for task in store.load()} == {"tinycalc"}
    funnel = json.loads((tmp_path / "tasks/funnel.json").read_text())
    unit = funnel["units"]["mutations-broken"]
    assert "nowhere" in unit["error"]
    assert funnel["logs"]["mutations"]["skipped_no_usable_tests"].startswith("mutations-broken: broken: tests = ")
    assert unit["skipped_no_usable_tests"] == 1
    with pytest.raises(TaskError, match="nowhere"):
        build(write_config(broken), tmp_path / "other", seeded_layers)


def _corrupt(path: Path) -> None:
    path.write_bytes(b"rubbish" * 1000)


def _escaping(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("../outside.py")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))


def test_archives_that_cannot_be_used_are_counted_skips(
    tinycalc: Package, seeded_layers: LayerStore, write_config: Callable[..., TasksConfig], tmp_path: Path
) -> None:
    spoilt = []
    for name, spoil in (("corrupt", _corrupt), ("escaping", _escaping)):
        archive = tmp_path / f"{name}-1.1.0.tar.gz"
        spoil(archive)
        changes = {"name": name, "sdists": {"1.1.0": sha256_of(archive)}, "releases": (), "num_tasks": 1}
        spoilt.append(tinycalc.model_copy(update=changes))
        with contextlib.suppress(InputError):
            LayerStore(seeded_layers.root, FileIndex(archive)).tree(spoilt[-1].sdist())
    good = tinycalc.model_copy(update={"releases": (), "num_tasks": 1})
    store = build(write_config(*spoilt, good), tmp_path / "tasks", seeded_layers)
    assert {task.provenance.package for task in store.load()} == {"tinycalc"}
    units = json.loads((tmp_path / "tasks/funnel.json").read_text())["units"]
    for name in ("corrupt", "escaping"):
        assert units[f"mutations-{name}"]["skipped_unusable_archive"] == 1
        assert "cannot be unpacked" in units[f"mutations-{name}"]["error"]
    assert not list(tmp_path.rglob("outside.py"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PackageNotFoundError("x"), "skipped_not_on_index"),
        (IndexUnavailableError("x"), "skipped_index_down"),
        (TaskError("x"), "skipped_no_usable_tests"),
        (SandboxLostError("x"), "skipped_sandbox_failure"),
        (DiskFullError("x"), "skipped_other"),
    ],
)
def test_every_skip_has_its_kind(error: RepairGymError, reason: str) -> None:
    assert skip_reason(error) == reason


def test_caps_are_spread_over_packages(tinycalc: Package) -> None:
    packages = [
        tinycalc.model_copy(update={"name": name, "num_tasks": num, "split": split})
        for name, num, split in (("a", 5, "train"), ("b", 100, "train"), ("c", 100, "train"), ("d", 9, "test"))
    ]
    quotas = spread(packages, SplitLimits(train=45, validation=0, test=100), most=60)
    assert quotas == {"a": 5, "b": 20, "c": 20, "d": 9}
    assert sum(spread(packages, SplitLimits(train=0, test=0), most=60).values()) == 0
    assert spread(packages, SplitLimits(train=1000), most=60)["b"] == 60


def test_plan_of_unknown_package() -> None:
    with pytest.raises(InputError, match="no package nowhere"):
        plan(TasksConfig(packages=("nowhere",)))


def test_every_function_id_of_a_task_exists_in_the_pinned_test_files(
    built: TaskStore, seeded_layers: LayerStore, tinycalc: Package
) -> None:
    for task in built.load():
        tree = seeded_layers.tree(tinycalc.sdist(task.provenance.version))
        for test_id in task.fail_to_pass:
            path, _, name = function_id(test_id).partition("::")
            assert name in cuttable_names((tree / path).read_text())


def test_a_missing_lock_is_the_fault_of_its_package_alone(
    write_config: Callable[..., TasksConfig], seeded_layers: LayerStore, tinycalc: Package, tmp_path: Path
) -> None:
    unlocked = tinycalc.model_copy(update={"name": "unlocked", "requirements": ("never-locked",)})
    config = write_config(tinycalc, unlocked).model_copy(update={"sources": ("releases",)})
    store = build(config, tmp_path / "tasks", seeded_layers)
    assert {task.provenance.package for task in store.load()} == {"tinycalc"}
    told = store.load_document("funnel.json")["units"]["releases-unlocked"]["error"]
    assert told.startswith("unlocked: no lock pytest+never-locked.txt")
    with pytest.raises(TaskError, match=r"^unlocked: no lock"):
        build(config.model_copy(update={"packages": ("unlocked",)}), tmp_path / "others", seeded_layers)


def test_the_lock_that_a_source_uses_is_part_of_a_units_key(tinycalc: Package, tmp_path: Path) -> None:
    aged = tinycalc.model_copy(update={"aged": (tinycalc.version,)})
    settings = tinycalc.model_copy(update={"requirements": ("never-locked",)})
    repository = Repository(name="r", split="train", sources=("*.py",), tests=("t.py",), url="u")
    undated = TasksConfig(locks=str(tmp_path), history=HistoryConfig(is_lock_dated=False))
    jobs = [
        (Job("mutations", aged, 1), (), TasksConfig(locks=str(tmp_path))),
        (Job("breakages", settings, 1), BUILD_REQUIREMENTS, TasksConfig(locks=str(tmp_path))),
        (Job("history", repository, 1), (), undated),
    ]
    for job, requirements, config in jobs:
        (tmp_path / lock_name(requirements)).write_text("pytest==8.3.5\n")
        before = job.key(config)
        (tmp_path / lock_name(requirements)).write_text("pytest==8.3.6\n")
        assert job.key(config) != before
        (tmp_path / lock_name(requirements)).unlink()
        with pytest.raises(TaskError, match="no lock"):
            job.key(config)
    # Locks that are resolved later are no part.
    assert Job("history", repository, 1).key(TasksConfig(locks=str(tmp_path)))
    assert Job("breakages", aged, 1, 1).key(TasksConfig(locks=str(tmp_path)))


def test_a_part_of_a_package_is_not_another_package(tinycalc: Package) -> None:
    names = {Job("releases", tinycalc.model_copy(update={"name": name}), 1, part).name for name, part in PARTS}
    assert len(names) == len(PARTS)


PARTS = (("foo", 1), ("foo-1", 0), ("foo-1", 1), ("foo", 0))


def test_a_file_that_ends_the_parser_is_the_fault_of_its_package_alone(
    tinycalc: Package, seeded_layers: LayerStore, write_config: Callable[..., TasksConfig], tmp_path: Path
) -> None:
    archive = tmp_path / "deep-1.1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for part in ("src", "tests"):
            tar.add(seeded_layers.tree(tinycalc.sdist()) / part, f"deep-1.1.0/{part}")
        content = f"deep = {'[' * 5000}{']' * 5000}\n".encode()
        info = tarfile.TarInfo("deep-1.1.0/pyproject.toml")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    changes = {"name": "deep", "sdists": {"1.1.0": sha256_of(archive)}, "releases": (), "num_tasks": 1}
    deep, good = tinycalc.model_copy(update=changes), tinycalc.model_copy(update={"releases": (), "num_tasks": 1})
    LayerStore(seeded_layers.root, FileIndex(archive)).tree(deep.sdist())
    store = build(write_config(deep, good), tmp_path / "tasks", seeded_layers)
    assert {task.provenance.package for task in store.load()} == {"tinycalc"}
    assert "deep: RecursionError" in store.load_document("funnel.json")["units"]["mutations-deep"]["error"]


def test_the_issues_of_a_repository_are_part_of_a_units_key(tmp_path: Path) -> None:
    issues = tmp_path / "issues.json"
    fields = {"sources": ("*.py",), "tests": ("t.py",), "url": "u", "issues": str(issues)}
    job, config = Job("history", Repository(name="r", split="train", **fields), 1), TasksConfig()
    keys = [job.key(config)]
    for text in ("{}", '{"3": {"title": "T"}}'):
        issues.write_text(text)
        keys.append(job.key(config))
    assert len(set(keys)) == 3


def test_a_catalogue_with_nothing_to_make_says_so(
    write_config: Callable[..., TasksConfig], seeded_layers: LayerStore, tinycalc: Package, tmp_path: Path
) -> None:
    config = write_config(tinycalc.model_copy(update={"releases": ()})).model_copy(update={"sources": ("releases",)})
    with pytest.raises(TaskError, match="has nothing for releases: releases need pairs"):
        build(config, tmp_path, seeded_layers)
