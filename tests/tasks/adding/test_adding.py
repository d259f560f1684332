"""The whole way from a name to a catalogue entry, on the fixture package and without a network."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.sandbox import SandboxConfig
from repairgym.config.tasks import HistoryConfig, TasksConfig
from repairgym.errors import InputError, PackageNotFoundError, SandboxError, TaskError
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.adding.adding import Added, Adder, looks_like_repository
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.environments import read_lock
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore


class ListingIndex:
    """An index that knows the releases of one package."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        if name != self.package.name:
            raise PackageNotFoundError(f"no {name}")
        return tuple(self.package.sdist(version) for version in sorted(self.package.sdists, reverse=True))


class NoSandboxes:
    """A back end of a machine on which nothing may run again."""

    name = "none"

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        raise SandboxError("nothing may run")

    async def close(self) -> None: ...


def only_pytest(requirements: tuple[str, ...]) -> str:
    if requirements:
        raise PackageNotFoundError(f"No solution found: there is no {requirements[0]}")
    return read_lock(())


@dataclass(frozen=True)
class Adding:
    """Adds with a sandbox of its own, so that nothing is left running."""

    layers: LayerStore
    package: Package
    backend: SandboxBackend | None = None

    def add(self, call: Callable[[Adder], Awaitable[Added]]) -> Added:
        async def run() -> Added:
            backend = self.backend or create_backend(SandboxConfig())
            index = ListingIndex(self.package)
            try:
                return await call(Adder(self.layers, backend, "train", "tasks add x", print, index, only_pytest))
            finally:
                await backend.close()

        return asyncio.run(run())


@pytest.fixture
def adding(seeded_layers: LayerStore, tinycalc: Package) -> Adding:
    return Adding(seeded_layers, tinycalc)


def test_package_becomes_an_entry_that_builds(adding: Adding, tinycalc: Package, tmp_path: Path) -> None:
    added = adding.add(lambda adder: adder.package("tinycalc", num_pairs=8))
    catalogue, locks = tmp_path / "mine.toml", tmp_path / "locks"
    added.write(catalogue, locks)
    (package,) = load_catalogue(catalogue).package
    assert (package.root, package.tests, package.version) == ("src", ("tests/test_*.py",), "1.1.0")
    assert package.releases == (("1.0.0", "1.1.0"),)
    assert package.sdists == tinycalc.sdists
    assert (added.num_failed, added.num_files_kept, added.num_pairs) == (0, 1, 1)
    assert read_lock((), str(locks)) == added.lock
    assert "# root: the folder src holds tinycalc" in added.entry
    # What ran is kept: the same command needs no sandbox again.
    assert replace(adding, backend=NoSandboxes()).add(lambda adder: adder.package("tinycalc", num_pairs=8)) == added
    with pytest.raises(InputError, match="listed twice"):
        added.write(catalogue, locks)


@pytest.mark.slow
def test_entries_build_certified_tasks(adding: Adding, tmp_path: Path, make_history: Callable[..., Any]) -> None:
    catalogue, locks = tmp_path / "mine.toml", tmp_path / "locks"
    folder = make_history(tmp_path / "clone").folder
    adding.add(lambda adder: adder.package("tinycalc", num_pairs=8)).write(catalogue, locks)
    adding.add(lambda adder: adder.repository(str(folder), "other", "")).write(catalogue, locks)
    history = HistoryConfig(is_lock_dated=False, ablation_timeout_s=60.0)
    bounds: dict[str, Any] = {"num_workers": 1, "test_timeout_s": 20.0, "run_timeout_s": 60.0, "history": history}
    config = TasksConfig(catalogue=str(catalogue), locks=str(locks), sources=("releases", "history"), **bounds)
    tasks = build(config, tmp_path / "tasks", adding.layers).load()
    assert {task.source for task in tasks} == {"releases", "history"}
    assert all(task.certificate.is_valid for task in tasks)


def test_repository_becomes_an_entry_for_its_history(
    adding: Adding, tmp_path: Path, make_history: Callable[..., Any]
) -> None:
    folder = make_history(tmp_path / "tinycalc.git").folder
    added = adding.add(lambda adder: adder.repository(str(folder), "", ""))
    assert replace(adding, backend=NoSandboxes()).add(lambda adder: adder.repository(str(folder), "", "")) == added
    assert (added.name, added.kind, added.num_candidates) == ("tinycalc", "repository", 1)
    assert added.dropped == {"no_tests": 1, "no_code": 1, "root_commit": 1}
    catalogue, locks = tmp_path / "mine.toml", tmp_path / "locks"
    added.write(catalogue, locks)
    (repository,) = load_catalogue(catalogue).repository
    assert re.fullmatch("[0-9a-f]{40}", repository.revision)


def test_a_requirement_that_cannot_be_had_is_left_out_and_named(
    adding: Adding, tmp_path: Path, make_history: Callable[..., Any]
) -> None:
    repository = make_history(tmp_path / "clone")
    settings = '[project]\nname = "tinycalc"\ndependencies = ["not-to-be-had>1; python_version > \'3.0\'"]\n'
    repository.write("pyproject.toml", settings)
    repository.commit("Declare a dependency")
    added = adding.add(lambda adder: adder.repository(str(repository.folder), "", ""))
    assert (added.name, added.requirements) == ("tinycalc", ())
    assert any("not-to-be-had (the package requires it) is left out" in problem for problem in added.problems)


def test_a_suite_that_fails_as_a_whole_names_the_cause(
    adding: Adding, tmp_path: Path, make_repository: Callable[[Path], Any]
) -> None:
    repository = make_repository(tmp_path / "clone")
    repository.write("broken/__init__.py", "import wanted_by_nobody_else\n")
    repository.write("tests/test_it.py", "import broken\n\ndef test_it(): ...\n")
    repository.write("setup.py", "setup(name='broken', version='1')\n")
    repository.commit("First")
    expected = r"broken: no file of its tests can be kept; 1 of 1 files: .*wanted_by_nobody_else"
    with pytest.raises(TaskError, match=expected):
        adding.add(lambda adder: adder.repository(str(repository.folder), "", ""))


@pytest.mark.parametrize(
    ("source", "expected"),
    [("schema", False), ("ruamel.yaml", False), ("./schema", True), ("/srv/x", True), ("https://host/a/b.git", True)],
)
def test_what_names_a_repository(source: str, expected: bool) -> None:
    assert looks_like_repository(source) is expected


def test_options_that_cannot_be_honoured_are_errors(tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments in (["x", "--name", "y"], ["./x", "--pairs", "3"], ["x", "--split", "other"]):
        assert runner.invoke(app, ["add", *arguments, "--catalogue", str(tmp_path / "c.toml")]).exit_code != 0
    (tmp_path / "c.toml").write_text(json.dumps({}))
    failed = runner.invoke(app, ["add", "x", "--catalogue", str(tmp_path / "c.toml")])
    assert isinstance(failed.exception, InputError)
