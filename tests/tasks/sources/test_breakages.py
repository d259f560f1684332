from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from repairgym.config.tasks import BreakageConfig, TasksConfig
from repairgym.grading.permitted import is_protected, permitted_part
from repairgym.records import Task
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.build.validation import graded_files, task_layers
from repairgym.tasks.build.wheel_check import BUILD_TEST, EXPECTED_FILE, RELEASE_TEST, SEALED_FILE
from repairgym.tasks.checkout import checkout
from repairgym.tasks.formats.exporting import export_dataset
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.mutation.real_breaks import REAL_NAMES
from repairgym.tasks.sight.build_scan import build_sightings
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS, make_breakages
from repairgym.tasks.store import TaskStore

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tinybuild"
version = "1.0"
requires-python = ">=3.8"

[project.scripts]
tinybuild = "tinybuild.cli:main"
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "tinybuild/__init__.py": "",
    "tinybuild/cli.py": "def main():\n    return 0\n",
    "tests/test_cli.py": "def test_main():\n    pass\n",
    "tox.ini": "[tox]\nenvlist = py3.8\n",
    "PKG-INFO": "Metadata-Version: 2.1\nName: tinybuild\nVersion: 1.0\nRequires-Python: >=3.8\n",
    "tinybuild.egg-info/entry_points.txt": "[console_scripts]\ntinybuild = tinybuild.cli:main\n",
}


CHECK = {BUILD_TEST, RELEASE_TEST, EXPECTED_FILE, SEALED_FILE}


class FileIndex:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    return pack(tmp_path_factory.mktemp("tinybuild"), FILES)


def pack(folder: Path, files: dict[str, str]) -> tuple[Package, Path]:
    """A package of the catalogue with ``files``, and its sdist."""
    for name, text in files.items():
        path = folder / "tinybuild-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    archive = folder / "tinybuild-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "tinybuild-1.0", "tinybuild-1.0")
    made = Package(
        name="tinybuild",
        split="train",
        version="1.0",
        sdists={"1.0": sha256_of(archive)},
        sources=("tinybuild/*.py",),
        tests=("tests/test_*.py",),
    )
    return made, archive


def make_store(folder: Path, archive: Path, environment: Path) -> LayerStore:
    """Layers whose build back ends are those of ``environment``: nothing is downloaded."""
    store = LayerStore(folder, FileIndex(archive))
    place = store.root / "environments" / describe_environment(read_lock(BUILD_REQUIREMENTS)).digest
    place.parent.mkdir(parents=True)
    place.symlink_to(environment)
    return store


@pytest.fixture(scope="module")
def built(
    package: tuple[Package, Path], tmp_path_factory: pytest.TempPathFactory, build_environment: Path
) -> tuple[TaskStore, LayerStore]:
    made, archive = package
    folder = tmp_path_factory.mktemp("built")
    lines = [f"{k} = {json.dumps(v)}" for k, v in made.model_dump(exclude={"sdists"}).items()]
    (folder / "catalogue.toml").write_text(
        "\n".join(["[[package]]", *lines, "[package.sdists]", f'"1.0" = "{made.sdists["1.0"]}"'])
    )
    config = TasksConfig(
        catalogue=str(folder / "catalogue.toml"),
        sources=("breakages",),
        breakages=BreakageConfig(num_per_package=2, num_tries=3),
        num_certificate_runs=1,
        num_workers=1,
    )
    layers = make_store(folder / "layers", archive, build_environment)
    # The build opens the layers itself, with the user's index.
    layers.tree(made.sdist())
    return build(config, folder / "tasks", layers), layers


def load(built: tuple[TaskStore, LayerStore]) -> tuple[Task, ...]:
    return built[0].load(source="breakages")


def test_broken_settings_become_certified_tasks(built: tuple[TaskStore, LayerStore]) -> None:
    tasks = load(built)
    assert len(tasks) == 2
    assert all(task.certificate.is_valid for task in tasks)
    operators = {task.labels["operator"] for task in tasks}
    assert len(operators) == 2
    assert operators <= REAL_NAMES
    for task in tasks:
        assert task.gold_files == {"pyproject.toml": PYPROJECT}
        assert task.labels["error_class"] in {"dependency", "build_tool", "version", "configuration"}
        assert "tinybuild" in task.issue


def test_the_tests_of_the_build_are_pinned_and_restored(built: tuple[TaskStore, LayerStore]) -> None:
    tasks, layers = load(built), built[1]
    for task in tasks:
        assert set(task.test_paths) >= CHECK
        assert CHECK.isdisjoint(graded_files(task))
        tree = task_layers(task, layers).tree
        assert tree.name == task.base_tree
        wheel = json.loads((tree / EXPECTED_FILE).read_text())
        assert list(wheel["modules"]) == ["tinybuild/__init__.py", "tinybuild/cli.py"]


def test_nothing_that_the_agent_sees_tells_the_repair(built: tuple[TaskStore, LayerStore], tmp_path: Path) -> None:
    tasks, layers = load(built), built[1]
    for task in tasks:
        own = task_layers(task, layers)
        assert not list(build_sightings(task, own.tree, own.environment))
        checkout(task, layers, tmp_path / task.id)
        assert not (tmp_path / task.id / EXPECTED_FILE).exists()
        assert "Requires-Python" not in (tmp_path / task.id / "PKG-INFO").read_text()
        assert not (tmp_path / task.id / "tinybuild.egg-info" / "entry_points.txt").read_text()
        sealed = (tmp_path / task.id / SEALED_FILE).read_text()
        assert not any(word in sealed for word in ("tinybuild", "cli", "3.8"))


def test_the_agent_sees_its_test_fail_and_pass_with_the_repair(
    built: tuple[TaskStore, LayerStore], tmp_path: Path
) -> None:
    """Digests decide as plain expectations do, and no failure says what is right."""
    layers = built[1]
    task = next(task for task in load(built) if set(task.visible_tests) & set(task.fail_to_pass))
    for repair, is_right in (({}, False), (task.gold_files, True)):
        folder = tmp_path / str(is_right)
        checkout(task, layers, folder)
        for path, text in repair.items():
            (folder / path).write_text(text or "")
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *task.visible_tests]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
        assert (done.returncode == 0) is is_right, done.stdout


def test_the_tree_is_made_again_from_the_record(
    built: tuple[TaskStore, LayerStore], package: tuple[Package, Path], tmp_path: Path, build_environment: Path
) -> None:
    task = load(built)[0]
    assert task_layers(task, make_store(tmp_path, package[1], build_environment)).tree.name == task.base_tree


def test_grading_applies_any_settings_and_keeps_check_and_tests(
    built: tuple[TaskStore, LayerStore],
) -> None:
    task = load(built)[0]
    assert not any(is_protected(task, path) for path in ("pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in"))
    others = ("repairgym_build/conftest.py", "repairgym_build/packaging.py", "conftest.py", "tox.ini", "a/setup.cfg")
    assert all(is_protected(task, path) for path in (*CHECK, "tests/test_cli.py", *others))
    kept, left_out = permitted_part(task, {"pyproject.toml": PYPROJECT, BUILD_TEST: ""})
    assert set(kept) == {"pyproject.toml"}
    assert [finding.path for finding in left_out] == [BUILD_TEST]


def test_a_broken_build_can_be_exported(built: tuple[TaskStore, LayerStore], tmp_path: Path) -> None:
    store, layers = built
    summary = export_dataset(store, tmp_path / "rows.jsonl", FORMATS["swe_bench"], "jsonl", layers)
    assert summary.num_written == len(load(built))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert all("pyproject.toml" in row["patch"] for row in rows)


def test_a_package_that_does_not_build_is_counted(tmp_path: Path, build_environment: Path) -> None:
    broken = {**FILES, "pyproject.toml": PYPROJECT.replace('"hatchling"', '"no-such-back-end"')}
    made, archive = pack(tmp_path, broken)
    config = TasksConfig(num_certificate_runs=1)

    async def make() -> SourceResult:
        backend = create_backend(config.sandbox)
        try:
            store = make_store(tmp_path / "layers", archive, build_environment)
            return await make_breakages(made, BuildContext(store, backend, config, quota=1))
        finally:
            await backend.close()

    found = asyncio.run(make())
    assert (found.tasks, dict(found.funnel)) == ([], {"does_not_build": 1})
