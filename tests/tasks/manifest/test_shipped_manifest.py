"""The book of recipes that comes with the repository."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.records import Task
from repairgym.tasks.build.verification import verify_tasks
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.environments import read_lock
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import RecipeBook, numbers
from repairgym.tasks.manifest.rebuild import rebuild_book
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS

CATALOG = Path(__file__).parents[3] / "catalog"
MAX_BYTES = 4_000_000


@pytest.fixture(scope="module")
def book() -> RecipeBook:
    return RecipeBook(CATALOG / "real.toml")


def test_every_page_can_be_read_and_every_task_is_proven(book: RecipeBook) -> None:
    seen: set[str] = set()
    for name in book.names():
        page = book.page(name)
        assert page.package.name == name
        for recipe in page.recipes.values():
            assert book.lock(recipe)
            tests = [*numbers(recipe.fail), *numbers(recipe.keep)]
            assert tests == list(dict.fromkeys(tests))
            assert max(tests) < len(page.shared.tests)
            num_empty, num_failed, num_gold, num_passed = recipe.runs
            assert num_empty == num_failed >= 3
            assert num_gold == num_passed >= 3
            assert recipe.id not in seen
            seen.add(recipe.id)
    assert seen


def test_the_catalogue_can_be_reviewed() -> None:
    assert sum(path.stat().st_size for path in CATALOG.rglob("*") if path.is_file()) < MAX_BYTES


def test_what_it_is_built_with_fits_together() -> None:
    config = TasksConfig.model_validate(tomllib.loads((CATALOG / "build.toml").read_text(encoding="utf-8")))
    packages = load_catalogue(CATALOG.parent / config.catalogue).package
    locks = str(CATALOG.parent / config.locks)
    assert all(read_lock(package.requirements, locks) for package in packages)
    assert read_lock(BUILD_REQUIREMENTS, locks)


def test_pages_and_packages_agree_on_splits(book: RecipeBook) -> None:
    splits = {package.name: package.split for package in load_catalogue(CATALOG / "packages.toml").package}
    assert {name: book.page(name).package.split for name in book.names()}.items() <= splits.items()


def test_splits_are_by_package(book: RecipeBook) -> None:
    # A page has one package, and a package one split; all three splits are there.
    assert {book.page(name).package.split for name in book.names()} == {"train", "validation", "test"}


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_sample_comes_out_equal_twice_and_holds(book: RecipeBook, tmp_path: Path) -> None:
    chosen = random.Random(0).sample(book.names(), 3)
    made: list[tuple[Task, ...]] = []
    for name in ("one", "two"):
        layers = LayerStore(tmp_path / name / "layers")
        made.append(rebuild_book(book, tmp_path / name / "tasks", RebuildConfig(packages=tuple(chosen)), layers).load())
    assert [task.digest() for task in made[0]] == [task.digest() for task in made[1]]
    assert len(made[0]) == sum(len(book.page(name).recipes) for name in chosen)
    sample = random.Random(0).sample(made[0], 3)
    failures = [told async for _, told in verify_tasks(sample, layers=LayerStore(tmp_path / "one" / "layers"))]
    assert failures == ["", "", ""]


def test_the_documented_table_is_of_this_book(book: RecipeBook) -> None:
    table = (CATALOG.parent / "docs" / "catalogue.md").read_text(encoding="utf-8")
    recipes = [recipe for name in book.names() for recipe in book.page(name).recipes.values()]
    sources = sorted({recipe.source for recipe in recipes})
    counts = " | ".join(str(sum(recipe.source == source for recipe in recipes)) for source in sources)
    assert f"| {len(book.names())} packages | | | {counts} | | |" in table
