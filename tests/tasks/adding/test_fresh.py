from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from repairgym.config.tasks import FreshConfig, RebuildConfig
from repairgym.errors import PackageNotFoundError
from repairgym.records import Task
from repairgym.tasks.adding.fresh import FreshFinder, FreshPackage, dated
from repairgym.tasks.layers.catalogue import NpmPackage, Package, Removal, load_catalogue
from repairgym.tasks.layers.environments import lock_name
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.store import TaskStore

NOW = datetime(2026, 11, 20, tzinfo=UTC)


class DatedIndex:
    """An index with the releases of one package, two weeks apart from each other."""

    def __init__(self, package: Package, *later: str, has_times: bool = True) -> None:
        known = [package.sdist(version) for version in package.sdists]
        self.listed = [*known, *(Sdist(name=package.name, version=version, sha256=version) for version in later)][::-1]
        self.has_times = has_times

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        if name != self.listed[0].name:
            raise PackageNotFoundError(f"no {name}")
        return tuple(self.listed)

    def upload_times(self, name: str) -> dict[str, datetime]:
        times = {sdist.version: NOW - timedelta(days=1 + 14 * age) for age, sdist in enumerate(self.listed)}
        return times if self.has_times else {}


def find(
    index: DatedIndex, layers: LayerStore, days: int, *packages: Package
) -> tuple[list[FreshPackage], dict[str, str]]:
    said: list[str] = []
    finder = FreshFinder(index, layers, NOW - timedelta(days=days), NOW, said.append, lambda requirements: "a lock")
    return finder.find_all(packages)


def test_pairs_are_those_whose_newer_release_is_of_the_last_days(
    seeded_layers: LayerStore, tinycalc: Package, tmp_path: Path
) -> None:
    index = DatedIndex(tinycalc)
    assert find(index, seeded_layers, 0, tinycalc) == ([], {})
    ((fresh,), _) = find(index, seeded_layers, 10, tinycalc)
    assert (fresh.package.releases, fresh.uploaded) == ((("1.0.0", "1.1.0"),), {"1.1.0": "2026-11-19T00:00:00Z"})
    # The oldest release has none before it, so that it is in no pair.
    assert find(index, seeded_layers, 99, tinycalc) == ([fresh], {})
    assert (tinycalc.split, fresh.package.split) == ("train", "test")
    fresh.write_lock(tmp_path / "locks")
    (tmp_path / "catalogue.toml").write_text(fresh.text("tasks fresh"))
    assert "# releases: uploaded: 1.1.0 on 2026-11-19" in fresh.text("tasks fresh")
    config = FreshConfig().as_build(tmp_path / "catalogue.toml", tmp_path / "locks")
    assert load_catalogue(Path(config.catalogue)).package == (fresh.package,)
    assert (tmp_path / "locks" / lock_name(fresh.package.requirements)).read_text() == "a lock"


def test_what_the_entry_says_of_other_releases_is_left_out(
    seeded_layers: LayerStore, tinycalc: Package, tmp_path: Path
) -> None:
    removal = Removal(
        release="0.9", adapted="1.0.0", dependency="six", names=("six.b",), words=("b",), good="1.0", bad="2.0"
    )
    with_removals = tinycalc.model_copy(update={"removals": (removal,), "aged": ("0.9",)})
    ((fresh,), _) = find(DatedIndex(tinycalc), seeded_layers, 10, with_removals)
    (tmp_path / "catalogue.toml").write_text(fresh.text("tasks fresh"))
    assert load_catalogue(tmp_path / "catalogue.toml").package == (fresh.package,)
    fields = {"sdists": {"1.1.0": "sha512-x"}, "releases": (), "runner": "tape"}
    other = NpmPackage.model_validate(tinycalc.model_dump() | fields)
    found, left_out = find(DatedIndex(tinycalc), seeded_layers, 10, other)
    assert found == []
    assert "no Python package" in left_out["tinycalc"]


def test_what_cannot_be_looked_at_is_left_out_with_the_reason(seeded_layers: LayerStore, tinycalc: Package) -> None:
    other = tinycalc.model_copy(update={"name": "other"})
    found, left_out = find(DatedIndex(tinycalc), seeded_layers, 10, other, tinycalc)
    assert [one.package.name for one in found] == ["tinycalc"]
    assert left_out == {"other": "no other"}
    _, left_out = find(DatedIndex(tinycalc, has_times=False), seeded_layers, 10, tinycalc)
    assert "the index gives no upload times" in left_out["tinycalc"]


def test_tasks_are_dated_and_a_manifest_keeps_the_date(
    built: TaskStore, seeded_layers: LayerStore, tinycalc: Package, tmp_path: Path
) -> None:
    tasks: tuple[Task, ...] = built.load(source="releases")
    fresh = FreshPackage(tinycalc, {"1.1.0": "2026-11-19T00:00:00Z"})
    made = dated(tasks, [fresh])
    assert {task.created_at for task in made} == {"2026-11-19T00:00:00Z"}
    (tmp_path / "manifest.toml").write_text('entries = "real"\n')
    manifest = TaskManifest(tmp_path / "manifest.toml")
    manifest.add(made, {"tinycalc": tinycalc})
    again = rebuild_manifest(manifest, tmp_path / "tasks", RebuildConfig(), seeded_layers).load()
    assert {task.created_at for task in again} == {"2026-11-19T00:00:00Z"}
