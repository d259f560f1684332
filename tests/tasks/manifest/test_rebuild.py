"""The task manifest that comes with the repository."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.evaluation.accuracy import accuracy_of, describe_accuracy
from repairgym.records import Task
from repairgym.tasks.build.verification import verify_tasks
from repairgym.tasks.build.wheel_check import BUILD_TEST, DEPENDENCY_TEST, RELEASE_TEST, check_text
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.environments import read_lock
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest, parse_ranges, text_key
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS

ROOT = Path(__file__).parents[3]
CATALOG = ROOT / "src/repairgym/data/catalog"
MAX_BYTES = 7_000_000


@pytest.fixture(scope="module")
def manifest() -> TaskManifest:
    return TaskManifest(CATALOG / "real.toml")


def test_every_page_can_be_read_and_every_task_is_proven(manifest: TaskManifest) -> None:
    seen: set[str] = set()
    for name in manifest.names():
        content = manifest.load(name)
        assert content.package.name == name
        for entry in content.entries.values():
            assert manifest.lock(entry)
            tests = [*parse_ranges(entry.fail), *parse_ranges(entry.keep)]
            assert tests == list(dict.fromkeys(tests))
            assert max(tests) < len(content.shared.tests)
            num_empty, num_failed, num_gold, num_passed = entry.runs
            assert num_empty == num_failed >= 3
            assert num_gold == num_passed >= 3
            assert entry.id not in seen
            seen.add(entry.id)
    assert seen


def test_the_catalogue_can_be_reviewed() -> None:
    assert sum(path.stat().st_size for path in CATALOG.rglob("*") if path.is_file()) < MAX_BYTES


def test_what_it_is_built_with_fits_together() -> None:
    text = (CATALOG.parent / "presets" / "catalogue.toml").read_text(encoding="utf-8")
    config = TasksConfig.model_validate(tomllib.loads(text))
    packages = load_catalogue(Path(config.catalogue)).package
    locks = config.locks
    assert all(read_lock(package.requirements, locks) for package in packages)
    assert read_lock(BUILD_REQUIREMENTS, locks)


def test_pages_and_packages_agree_on_splits(manifest: TaskManifest) -> None:
    splits = {package.name: package.split for package in load_catalogue(CATALOG / "packages.toml").package}
    assert {name: manifest.load(name).package.split for name in manifest.names()}.items() <= splits.items()


def test_shipped_checks_are_those_of_the_digests() -> None:
    # Their texts are part of every recorded digest of a broken build: another text needs other digests.
    keys = {path: text_key(check_text(path)) for path in (BUILD_TEST, DEPENDENCY_TEST, RELEASE_TEST)}
    assert keys == {BUILD_TEST: "4f438abd9174", DEPENDENCY_TEST: "f68a41e1c841", RELEASE_TEST: "d5d03b8f2efd"}


def test_splits_are_by_package(manifest: TaskManifest) -> None:
    # A content has one package, and a package one split; all three splits are there.
    assert {manifest.load(name).package.split for name in manifest.names()} == {"train", "validation", "test"}


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_sample_comes_out_equal_twice_and_holds(manifest: TaskManifest, tmp_path: Path) -> None:
    chosen = random.Random(0).sample(manifest.names(), 3)
    made: list[tuple[Task, ...]] = []
    for name in ("one", "two"):
        layers = LayerStore(tmp_path / name / "layers")
        made.append(
            rebuild_manifest(manifest, tmp_path / name / "tasks", RebuildConfig(packages=tuple(chosen)), layers).load()
        )
    assert [task.digest() for task in made[0]] == [task.digest() for task in made[1]]
    assert len(made[0]) == sum(len(manifest.load(name).entries) for name in chosen)
    sample = random.Random(0).sample(made[0], 3)
    failures = [told async for _, told in verify_tasks(sample, layers=LayerStore(tmp_path / "one" / "layers"))]
    assert failures == ["", "", ""]


def test_the_documented_table_is_of_this_manifest(manifest: TaskManifest) -> None:
    table = (ROOT / "docs" / "reference" / "catalogue.md").read_text(encoding="utf-8")
    entries = [entry for name in manifest.names() for entry in manifest.load(name).entries.values()]
    sources = sorted({entry.source for entry in entries})
    counts = " | ".join(str(sum(entry.source == source for entry in entries)) for source in sources)
    verdicts = describe_accuracy(accuracy_of(entry.accuracy for entry in entries)).partition(",")[0]
    assert f"| {len(manifest.names())} packages | | | {counts} | | {verdicts}" in table
