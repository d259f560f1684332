from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.records import Task
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import gather_evidence
from repairgym.tasks.layers.catalogue import Package, Removal
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, content_digest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.sources.adaptations import Adaptation
from repairgym.tasks.sources.base import BuildContext, Drop

SETUP = 'from setuptools import setup\nsetup(\n    name="tiny",\n    install_requires=["cachetools>=4"],\n)\n'
TEST = """import tiny


def test_kept():
    assert tiny.keep(1) == 1


def test_twice():
    assert tiny.twice(2) == 4
"""
REST = "\nKEPT = TTLCache(10, 60)\n\n\ndef keep(it):\n    KEPT[it] = it\n    return KEPT[it]\n\n\n"
RELEASES = {
    # cachetools 5 has no such module. The files move to another root, and another function gets better.
    "1.0": {"tiny.py": f"from cachetools.ttl import TTLCache\n{REST}def twice(it):\n    return it + it\n"},
    "2.0": {"src/tiny.py": f"from cachetools import TTLCache\n{REST}def twice(it):\n    return 2 * it\n"},
}


# The places with the name need a module that 2.0 does not have.
WITH_A_MODULE = {
    "1.0": {
        "tiny.py": f"from cachetools.ttl import TTLCache\nfrom double import double\n{REST}"
        "def twice(it):\n    return double(it)\n",
        "double.py": "def double(it):\n    return it + it\n",
    },
    "2.0": {"tiny.py": f"from cachetools import TTLCache\n{REST}def twice(it):\n    return 2 * it\n"},
}
# Only a file that is gone has the name.
IN_A_GONE_FILE = {
    "1.0": {
        "tiny.py": f"from caches import TTLCache\n{REST}def twice(it):\n    return 2 * it\n",
        "caches.py": "from cachetools.ttl import TTLCache\n",
    },
    "2.0": WITH_A_MODULE["2.0"],
}

# Flask before 2.3 admits today's Werkzeug and does not work with it.
WITH_FLASK = {
    version: {
        "setup.py": SETUP.replace("cachetools>=4", "flask"),
        "tiny.py": f"from {module} import JSONEncoder\n\nENCODER = JSONEncoder()\n",
        "tests/test_tiny.py": "from flask import Flask\n\nimport tiny\n\n\ndef test_app():\n"
        "    assert Flask('tiny').test_client().get('/').status_code == 404\n    assert tiny.ENCODER\n",
    }
    for version, module in {"1.0": "flask.json", "2.0": "json"}.items()
}


class Releases:
    """An index of two sdists."""

    def __init__(self, folder: Path, files_of: dict[str, dict[str, str]] = RELEASES) -> None:
        self.folder = folder
        for version, files in files_of.items():
            for name, text in {"setup.py": SETUP, "tests/test_tiny.py": TEST, **files}.items():
                path = folder / f"tiny-{version}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            with tarfile.open(self.path(version), "w:gz") as tar:
                tar.add(folder / f"tiny-{version}", f"tiny-{version}")

    def path(self, version: str) -> Path:
        return self.folder / f"tiny-{version}.tar.gz"

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path(sdist.version)

    def package(self, *words: str, root: str = "src", requirements: tuple[str, ...] = ()) -> Package:
        removal = Removal(
            release="1.0",
            adapted="2.0",
            dependency="cachetools",
            names=("cachetools.ttl.TTLCache",),
            words=words,
            good="4.2.4",
            bad="5.0.0",
        )
        return Package(
            name="tiny",
            split="train",
            version="2.0",
            root=root,
            sdists={version: sha256_of(self.path(version)) for version in RELEASES},
            requirements=requirements,
            sources=("*.py", "src/tiny.py"),
            tests=("tests/test_*.py",),
            removals=(removal,),
        )


@pytest.mark.network
@pytest.mark.slow
def test_the_repair_of_the_next_release_becomes_a_task(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    store, config = LayerStore(tmp_path / "layers", releases), TasksConfig()

    async def make(*words: str) -> tuple[Task | Drop, bool]:
        backend = create_backend(config.sandbox)
        package = releases.package(*words)
        try:
            made = await Adaptation(package, package.removals, BuildContext(store, backend, config, quota=1)).task()
            if isinstance(made, Drop):
                return made, False
            evidence = await gather_evidence(made, store, backend, num_runs=1)
            return made, evidence.certificate(made.fail_to_pass, made.pass_to_pass).is_valid
        finally:
            await backend.close()

    task, is_valid = asyncio.run(make("TTLCache"))
    assert isinstance(task, Task), task
    assert is_valid
    assert [line for line in task.gold_patch.splitlines() if line[:1] in "+-"][2:] == [
        "-from cachetools.ttl import TTLCache",
        "+from cachetools import TTLCache",
    ]
    assert {*task.fail_to_pass} == {f"tests/test_tiny.py::test_{name}" for name in ("kept", "twice")}
    assert task.issue.startswith("tiny does not work with cachetools ")
    assert task.issue.endswith("ModuleNotFoundError: No module named 'cachetools.ttl'")
    assert (task.labels["operator"], task.labels["dependency"]) == ("newer_dependency", "cachetools")
    assert task.timeout_s < 10  # an ordinary run of tests, not a build
    # What was recorded comes back.
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest = TaskManifest(tmp_path / "manifest.toml")
    manifest.add([task], {"tiny": releases.package("TTLCache")})
    again = rebuild_manifest(manifest, tmp_path / "tasks", RebuildConfig(), store).load()
    assert [content_digest(one) for one in again] == [content_digest(manifest.with_deadlines(task))]
    # A change that the dependency has nothing to do with is no breakage.
    drop, _ = asyncio.run(make("it"))
    assert isinstance(drop, Drop)
    assert drop.reason == "holds_with_newest"


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("files_of", [WITH_A_MODULE, IN_A_GONE_FILE], ids=["with_a_module", "in_a_gone_file"])
def test_other_places_that_the_repaired_ones_need_belong_to_the_task(
    tmp_path: Path, files_of: dict[str, dict[str, str]]
) -> None:
    releases = Releases(tmp_path, files_of)
    store, config = LayerStore(tmp_path / "layers", releases), TasksConfig()
    # No version of the tests' requirement fits: it is left out.
    package = releases.package("TTLCache", root="", requirements=("cachetools>=99",))

    async def make() -> Task | Drop:
        backend = create_backend(config.sandbox)
        try:
            return await Adaptation(package, package.removals, BuildContext(store, backend, config, quota=1)).task()
        finally:
            await backend.close()

    task = asyncio.run(make())
    assert isinstance(task, Task), task
    gone = next(path for path in files_of["1.0"] if path != "tiny.py")
    assert (f"--- a/{gone}" in task.gold_patch, "+from cachetools import TTLCache" in task.gold_patch) == (True, True)
    assert {*task.fail_to_pass} == {f"tests/test_tiny.py::test_{name}" for name in ("kept", "twice")}


@pytest.mark.network
@pytest.mark.slow
def test_versions_of_before_the_removal_prove_the_cause_where_newer_ones_do_not_fit(tmp_path: Path) -> None:
    releases = Releases(tmp_path, WITH_FLASK)
    store, config = LayerStore(tmp_path / "layers", releases), TasksConfig()
    flask = {"dependency": "flask", "names": ("flask.json.JSONEncoder",), "good": "2.2.5", "bad": "2.3.0"}
    package = releases.package("JSONEncoder", root="")
    removals = [removal.model_copy(update=flask) for removal in package.removals]

    async def make() -> Task | Drop:
        backend = create_backend(config.sandbox)
        try:
            return await Adaptation(package, removals, BuildContext(store, backend, config, quota=1)).task()
        finally:
            await backend.close()

    task = asyncio.run(make())
    assert isinstance(task, Task), task
    assert (task.labels["dependency"], task.fail_to_pass) == ("flask", ("tests/test_tiny.py::test_app",))
