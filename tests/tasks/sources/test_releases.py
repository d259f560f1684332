"""Answers that are known from elsewhere: real release pairs, split by hand beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.config.tasks import ReleaseConfig, TasksConfig
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.environments import lock_name, resolve_lock
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.pairs import Pair
from repairgym.tasks.sources.releases import collect, release_pair

pytestmark = [pytest.mark.network, pytest.mark.slow]

MARSHMALLOW = Package(
    name="marshmallow",
    split="train",
    version="3.21.2",
    sdists={
        "3.21.1": "4e65e9e0d80fc9e609574b9983cf32579f305c718afb30d7233ab818571768c3",
        "3.21.2": "82408deadd8b33d56338d2182d455db632c6313aa2af61916672146bb32edc56",
    },
    root="src",
    sources=("src/marshmallow/*.py",),
    tests=("tests/test_deserialization.py", "tests/test_serialization.py", "tests/test_utils.py"),
    requirements=("pytz", "simplejson"),
    releases=(("3.21.1", "3.21.2"),),
)


def config(**changes: object) -> TasksConfig:
    return TasksConfig(num_concurrent=1, num_workers=1, **changes)  # type: ignore[arg-type]


async def make_pair(package: Package, settings: TasksConfig, base: str, gold: str) -> tuple[Pair, SourceResult]:
    backend = create_backend(settings.sandbox)
    try:
        pair = await release_pair(package, BuildContext(LayerStore(), backend, settings, 8), base, gold)
        made = SourceResult()
        await collect(pair, made)
        return pair, made
    finally:
        await backend.close()


@pytest.mark.asyncio
async def test_sqlparse_splits_into_its_five_entries() -> None:
    (package,) = load_catalogue().select(("sqlparse",))
    _, made = await make_pair(package, config(releases=ReleaseConfig(kinds=())), "0.5.0", "0.5.1")
    assert {task.labels["issue_source"] for task in made.tasks} == {"changelog"}
    found = {number for task in made.tasks for number in ("772", "784", "782", "532", "783") if number in task.issue}
    assert (len(made.tasks), len(found)) == (5, 5)
    assert all(task.certificate.is_valid for task in made.tasks)


@pytest.mark.asyncio
async def test_cachetools_splits_into_three() -> None:
    (package,) = load_catalogue().select(("cachetools",))
    _, made = await make_pair(package, config(releases=ReleaseConfig(kinds=())), "5.3.3", "5.4.0")
    assert sorted(len(task.fail_to_pass) for task in made.tasks) == [1, 3, 16]
    issues = " ".join(task.issue for task in made.tasks)
    assert all(name in issues for name in ("MRUCache", "mru_cache", "typedmethodkey"))


@pytest.mark.asyncio
async def test_clock_dependent_ids_of_marshmallow_are_unstable(tmp_path: Path) -> None:
    (tmp_path / lock_name(MARSHMALLOW.requirements)).write_text(resolve_lock(MARSHMALLOW.requirements))
    pair, made = await make_pair(MARSHMALLOW, config(locks=str(tmp_path)), "3.21.1", "3.21.2")
    stable, unstable = await pair.stable_tests()
    assert len(unstable) == made.funnel["unstable_tests"] == 2
    assert stable
    assert not made.tasks
