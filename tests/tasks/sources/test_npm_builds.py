"""Tasks of npm packages with broken settings, with node and npm's registry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from repairgym.config.tasks import TasksConfig
from repairgym.grading.permitted import is_protected
from repairgym.records import Task, TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.javascript.breaks import find_npm_breaks
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.npm_locks import resolve_npm_lock
from repairgym.tasks.layers.npm_registry import integrity_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.npm_builds import NpmRun
from repairgym.testing.npm_archives import Folder, pack

pytestmark = [pytest.mark.network, pytest.mark.slow]
FILES = {
    "package.json": """{
  "name": "tiny",
  "version": "1.0.0",
  "main": "lib/tiny.js",
  "dependencies": {
    "reusify": "^1.0.0"
  },
  "devDependencies": {
    "eslint": "^9.0.0"
  }
}
""",
    "dist/tiny.min.js": "var kind;\n",
    "lib/tiny.js": "'use strict';\nconst reusify = require('reusify');\nexports.kind = typeof reusify;\n",
    "test/tiny.test.js": "'use strict';\nconst test = require('node:test');\nconst assert = require('node:assert');\n"
    "test('kind', () => { assert.strictEqual(require('../').kind, 'function'); });\n",
}
TEST = "repairgym_npm/package.test.cjs"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(TasksConfig().sandbox)
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory, backend: SandboxBackend) -> NpmRun:
    folder = tmp_path_factory.mktemp("npm")
    pin = integrity_of(pack(folder, "tiny", "1.0.0", FILES))
    (folder / "locks/npm").mkdir(parents=True)
    (folder / "locks/npm/tiny.json").write_text(resolve_npm_lock({"reusify": "1.0.4"}), encoding="utf-8")
    package = NpmPackage(
        name="tiny", split="train", sources=("lib/*.js",), tests=("test/*.js",), version="1.0.0",
        sdists={"1.0.0": pin}, runner="node_test",
    )  # fmt: skip
    config = TasksConfig(num_certificate_runs=1, locks=str(folder / "locks"))
    store = LayerStore(folder / "layers", index=Folder(folder))
    made = await NpmRun.set_up(package, BuildContext(store, backend, config, quota=9))
    assert not isinstance(made, Drop), made
    assert await made.check_gold() is None
    return made


async def task_of(run: NpmRun, operator: str) -> Task:
    edit = next(edit for edit in run.edits() if edit.operator == operator)
    task = await run.try_edit(edit)
    assert not isinstance(task, Drop), task
    return task


async def graded(run: NpmRun, task: Task, files: dict[str, str | None]) -> TestRun:
    spec = task_layers(task, run.context.store).spec(graded_files(task, files))
    return await run_fresh(run.context.backend, spec, task_request(task))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("operator", "failing"),
    [
        ("missing_dependency", "what its code needs is a dependency"),
        ("wrong_section", "what its code needs is a dependency"),
        ("misspelled_dependency", "its dependencies can be installed"),
        ("newer_range", "its dependencies can be installed"),
        ("wrong_path", "it can be loaded by require"),
        ("added_type", "its tests pass"),
        ("added_files", "it holds the files of the release"),
        ("trailing_comma", "package.json can be read"),
    ],
)
async def test_an_edit_becomes_a_certified_task(run: NpmRun, operator: str, failing: str) -> None:
    task = await task_of(run, operator)
    assert task.certificate.is_valid
    assert f"{TEST}::{failing}" in task.fail_to_pass
    assert set(task.gold_files) == {"package.json"}
    assert "dist/tiny.min.js" not in task.base_files
    assert not is_protected(task, "package.json")
    assert all(is_protected(task, f"repairgym_npm/{name}") for name in ("expected.json", "new.js", "package.json"))


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_environment_lacks_has_no_edits(run: NpmRun) -> None:
    assert '"eslint"' in FILES["package.json"]
    assert json.loads(run.pinned_files["repairgym_npm/expected.json"])["unmet"] == ["eslint"]
    sound = set(FILES["package.json"].splitlines())
    assert all('"eslint"' not in line for edit in run.edits() for line in sound - set(edit.text.splitlines()))
    assert any("eslints" in edit.text for edit in find_npm_breaks("package.json", FILES["package.json"]))


@pytest.mark.asyncio(loop_scope="module")
async def test_no_code_of_a_submission_runs_and_other_repairs_pass(run: NpmRun) -> None:
    task = await task_of(run, "newer_range")
    gold = FILES["package.json"]
    changed = FILES["lib/tiny.js"] + "process.exit(0);\n"
    for files in ({"lib/tiny.js": changed}, {"package.json": gold, "lib/tiny.js": changed}):
        assert not (await graded(run, task, files)).passes(task.fail_to_pass)
    other = gold.replace('"^1.0.0"', '">=1.0.2 <2"')
    assert (await graded(run, task, {"package.json": other})).passes(task.fail_to_pass + task.pass_to_pass)
    extra = {"package.json": gold, "lib/other.js": "process.exit(0);\n"}
    assert (await graded(run, task, extra)).passes(task.fail_to_pass + task.pass_to_pass)
    moved = gold.replace("lib/tiny.js", "lib/other.js")
    assert not (await graded(run, task, {**extra, "package.json": moved})).passes(task.pass_to_pass)
