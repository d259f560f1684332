from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import sys
import tarfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.records import Task, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import gather_evidence, task_layers
from repairgym.tasks.build.wheel_check import BUILD_TEST, check_text
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.environments import build_environment, describe_environment, resolve_lock, with_wheelhouse
from repairgym.tasks.layers.gc import use_path
from repairgym.tasks.layers.package_index import PackageIndex, Sdist, sha256_of
from repairgym.tasks.layers.requirement_pins import Place
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.sources.base import BuildContext
from repairgym.tasks.sources.dependencies import AgedRelease, aged_task
from repairgym.tasks.sources.version_search import Pin, bounds_recipe, read_bounds
from repairgym.testing.scripted import ScriptedBackend

SETUP_PY = """from setuptools import setup
setup(
    name="tinyload",
    version="1.0",
    py_modules=["tinyload"],
    install_requires=["tomli>=1", "cachetools>=4"],
)
"""
SOURCE = """import io

import tomli
from cachetools.ttl import TTLCache

KEPT = TTLCache(10, 60)


def load(text):
    return tomli.load(io.StringIO(text))
"""
FILES = {
    "setup.py": SETUP_PY,
    # cachetools 5 has no such module; behind that, tomli 2 reads binary files only.
    "tinyload.py": SOURCE,
    "tests/test_load.py": "import tinyload\n\n\ndef test_load():\n    assert tinyload.load('a = 1') == {'a': 1}\n",
    "tests/test_other.py": "def test_other():\n    pass\n",
}


class FileIndex:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path


def pack(folder: Path) -> tuple[Package, Path]:
    """A release that works beside older versions of two requirements only, and its sdist."""
    for name, text in FILES.items():
        path = folder / "tinyload-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    archive = folder / "tinyload-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "tinyload-1.0", "tinyload-1.0")
    made = Package(
        name="tinyload",
        split="train",
        version="1.0",
        sdists={"1.0": sha256_of(archive)},
        sources=("tinyload.py",),
        tests=("tests/test_*.py",),
        aged=("1.0",),
    )
    return made, archive


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build check, in an environment whose wheelhouse is below ``tmp_path``."""
    path = tmp_path / "test_build.py"
    path.write_text(check_text(BUILD_TEST))
    spec = importlib.util.spec_from_file_location("shipped_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return module


def add(folder: Path, name: str, version: str, *requires: str) -> None:
    """One distribution in a folder of its own of the wheelhouse."""
    place = folder / "wheelhouse" / f"{name}-{version}" / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")


def versions(check: ModuleType, *requirements: str) -> dict[str, str]:
    return {name: found.version for name, found in check.distributions_for(list(requirements)).items()}


def test_the_newest_versions_that_go_together_are_chosen(check: ModuleType, tmp_path: Path) -> None:
    for version in ("1.0", "2.0", "10.0"):
        add(tmp_path, "gymlib", version)
    add(tmp_path, "gymapp", "1.0", "gymlib>=1", "gymextra; extra == 'more'")
    add(tmp_path, "gymapp", "2.0", "gymlib>=10")
    assert versions(check, "gymapp") == {"gymapp": "2.0", "gymlib": "10.0"}
    # The bound on one makes the other older, whichever comes first.
    for wanted in (("gymapp", "gymlib<10"), ("gymlib<10", "gymapp")):
        assert versions(check, *wanted) == {"gymapp": "1.0", "gymlib": "2.0"}


def test_what_cannot_be_met_names_the_versions_that_are_there(check: ModuleType, tmp_path: Path) -> None:
    add(tmp_path, "gymlib", "1.0")
    add(tmp_path, "gymlib", "2.0")
    with pytest.raises(AssertionError, match=r"gymlib>2 \(from versions: 1.0, 2.0\)"):
        versions(check, "gymlib>2")
    with pytest.raises(AssertionError, match=r"no matching distribution found for no-such-thing$"):
        versions(check, "no-such-thing")
    add(tmp_path, "gymapp", "1.0", "gymlib<2")
    with pytest.raises(AssertionError, match="conflicting dependencies"):
        versions(check, "gymlib>=2", "gymapp")


@pytest.mark.parametrize("places", [("build", "build"), ("runtime", "runtime"), ("runtime", "build")])
def test_a_recipe_says_the_bounds(places: tuple[Place, Place]) -> None:
    first, second = Pin(places[0], "werkzeug"), Pin(places[1], "setuptools")
    told = bounds_recipe({first: ("2.1.0", "3.1.9"), second: ("81", "84.2.1")})
    assert read_bounds(told) == {first: "<2.1.0", second: "<81"}


@pytest.mark.asyncio
async def test_an_environment_that_another_task_has_outlives_a_search(tmp_path: Path) -> None:
    """Two old releases of a package may be repaired by the same versions."""
    package, archive = pack(tmp_path)
    store = LayerStore(tmp_path / "layers", FileIndex(archive))
    newest, older = "cachetools==5.0.0\n", "cachetools==4.2.4\n"
    digests = [describe_environment(text).digest for text in (newest, with_wheelhouse(newest, [older]))]
    for digest in digests:
        python = store.root / "environments" / digest / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    backend = ScriptedBackend(lambda files, request: TestRun(results={}, exit_status=0))
    context = BuildContext(store, backend, TasksConfig(), quota=1)
    spec = SandboxSpec(environment=tmp_path, tree=store.tree(package.sdist("1.0")))
    wheels = {("cachetools", "4.2.4"): older}
    release = AgedRelease(package, "1.0", context, spec, (), newest, {}, wheels=wheels)
    told = {"suite[tests/test_load.py]": "No module named 'cachetools.ttl'"}
    assert await release.failures({Pin("runtime", "cachetools"): "4.2.4"}, {"cachetools": "4.2.4"}, told) == {}
    release.discard_tried()
    assert all(store.has("environments", digest) for digest in digests)
    # One of the search that another process found stays while it is used.
    release.tried.add(digests[1])
    with use_path(store.root / "environments" / digests[1]).open() as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        release.discard_tried()
        assert store.has("environments", digests[1])
    release.discard_tried()
    assert not store.has("environments", digests[1])


class DatedIndex(PackageIndex):
    """An index with one release of 2020."""

    def __init__(self) -> None: ...

    def upload_times(self, name: str) -> dict[str, datetime]:
        return {"1.0": datetime(2020, 5, 1, 8, 30, tzinfo=UTC)} if name == "tinyload" else {}


def test_versions_of_its_own_time_are_of_the_list_that_fails(tmp_path: Path) -> None:
    package, archive = pack(tmp_path)
    store = LayerStore(tmp_path / "layers", FileIndex(archive))
    newest = "cachetools==6.0\npluggy==2.0\nsetuptools==90.0\nsix==1.17\ntomli==2.0\nwheel==0.50\n"
    asked: list[str] = []

    def resolve(requirements: tuple[str, ...], exclude_newer: str) -> str:
        asked.append(exclude_newer)
        return "cachetools==4.1\ngone==1.0\npluggy==1.0\nsetuptools==46.0\nsix==1.17\ntomli==0.9\nwheel==0.34\n"

    backend = ScriptedBackend(lambda files, request: TestRun(results={}, exit_status=0))
    context = BuildContext(store, backend, TasksConfig(), quota=1)
    spec = SandboxSpec(environment=tmp_path, tree=store.tree(package.sdist("1.0")))
    release = AgedRelease(package, "1.0", context, spec, (), newest, {}, DatedIndex(), resolve=resolve)
    # Neither what is the same today, nor what today's lock lacks, nor the runner's own.
    assert release.own_time("build") == {Pin("build", "setuptools"): "46.0", Pin("build", "wheel"): "0.34"}
    runtime = {"cachetools": "4.1", "setuptools": "46.0", "tomli": "0.9"}
    assert release.own_time("runtime") == {Pin("runtime", name): version for name, version in runtime.items()}
    assert asked == ["2020-05-01T08:30:00Z"]
    unknown = AgedRelease(package, "2.0", context, spec, (), newest, {}, DatedIndex(), resolve=resolve)
    assert unknown.own_time("build") == {}


@pytest.mark.network
def test_a_wheelhouse_is_installed_beside_the_environment(tmp_path: Path) -> None:
    newest, older = resolve_lock(()), resolve_lock(("iniconfig==2.0.0",))
    part = older[older.index("iniconfig==2.0.0") : older.index("packaging==")]
    lock = with_wheelhouse(newest, [part])
    store = LayerStore(tmp_path)
    _, folder = build_environment(store, lock)
    _, plain = build_environment(store, newest)
    module = next(plain.glob("lib/*/site-packages/pytest/__init__.py"))
    assert module.samefile(folder / module.relative_to(plain))
    assert (folder / "wheelhouse" / "iniconfig-2.0.0" / "iniconfig" / "__init__.py").is_file()
    assert not list(folder.glob("lib/*/site-packages/iniconfig-2.0.0.dist-info"))
    # Other environments with this version get the same files.
    (shared,) = (tmp_path / "wheelhouses").glob("[!.]*/iniconfig/__init__.py")
    assert shared.samefile(folder / "wheelhouse" / "iniconfig-2.0.0" / "iniconfig" / "__init__.py")


@pytest.mark.network
@pytest.mark.slow
def test_a_release_that_newer_dependencies_break_becomes_a_task(tmp_path: Path) -> None:
    package, archive = pack(tmp_path)
    store, config = LayerStore(tmp_path / "layers", FileIndex(archive)), TasksConfig(num_certificate_runs=1)

    async def make() -> tuple[Task | str, bool]:
        backend = create_backend(config.sandbox)
        try:
            made = await aged_task(package, "1.0", BuildContext(store, backend, config, quota=1), Counter())
            assert isinstance(made, Task), made
            evidence = await gather_evidence(made, store, backend, num_runs=1)
            return made, evidence.certificate(made.fail_to_pass, made.pass_to_pass).is_valid
        finally:
            await backend.close()

    task, is_valid = asyncio.run(make())
    assert isinstance(task, Task)
    assert is_valid
    bounds = {Pin("runtime", "tomli"): "<2.0.0", Pin("runtime", "cachetools"): "<5.0.0"}
    assert read_bounds(task.provenance.recipe) == bounds
    assert '+    install_requires=["tomli>=1,<2.0.0", "cachetools>=4,<5.0.0"],' in task.gold_patch.splitlines()
    assert task.labels["difficulty"] == "2"
    assert [test_id.partition("[")[2] for test_id in task.fail_to_pass] == ["tests/test_load.py]"]
    wheelhouse = task_layers(task, store).environment / "wheelhouse"
    assert {path.name for path in wheelhouse.iterdir()} == {"tomli-1.2.3", "cachetools-4.2.4"}
    # What was recorded comes back.
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest = TaskManifest(tmp_path / "manifest.toml")
    manifest.add([task], {"tinyload": package})
    again = rebuild_manifest(manifest, tmp_path / "tasks", RebuildConfig(), store).load()
    assert [content_digest(one) for one in again] == [content_digest(manifest.with_deadlines(task))]
