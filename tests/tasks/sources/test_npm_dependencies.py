"""Npm releases that a newer dependency breaks, with node and npm's registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.tasks import TasksConfig
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.npm_registry import integrity_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import Rebuilder
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.npm_dependencies import aged_npm_task
from repairgym.testing.npm_archives import Folder, pack

pytestmark = [pytest.mark.network, pytest.mark.slow]
SETTINGS = """{
  "name": "maker",
  "version": "1.0.0",
  "main": "index.js",
  "dependencies": {
    "mkdirp": "RANGE"
  }
}
"""
CODE = {
    "index.js": "'use strict';\nconst mkdirp = require('mkdirp');\nexports.make = (at, done) => mkdirp(at, done);\n",
    "test/make.test.js": "'use strict';\nconst test = require('node:test');\nconst os = require('node:os');\n"
    "const { make } = require('../');\ntest('calls back', (t, done) => { make(os.tmpdir() + '/a/b', done); });\n",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(TasksConfig().sandbox)
    yield made
    await made.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("declared", "kind", "broken", "gold"),
    [
        (">=0.5.1", "declared", ">=0.5.1", ">=0.5.1 <1.0.0"),
        ("^0.5.1", "lifted", "^3.0.1", "^0.5.1"),
    ],
)
async def test_a_release_that_a_newer_dependency_breaks_becomes_a_task(
    declared: str, kind: str, broken: str, gold: str, tmp_path: Path, backend: SandboxBackend
) -> None:
    settings = SETTINGS.replace("RANGE", declared)
    package = NpmPackage(
        name="maker", split="train", sources=("index.js",), tests=("test/*.js",), version="1.0.0", aged=("1.0.0",),
        sdists={"1.0.0": integrity_of(pack(tmp_path, "maker", "1.0.0", {**CODE, "package.json": settings}))},
        runner="node_test",
    )  # fmt: skip
    context = BuildContext(
        LayerStore(tmp_path / "layers", index=Folder(tmp_path)), backend, TasksConfig(num_certificate_runs=1), quota=1
    )
    funnel: Counter[str] = Counter()
    task = await aged_npm_task(package, "1.0.0", context, funnel, node_version="")
    assert not isinstance(task, Drop), task
    assert task.certificate.is_valid
    assert task.labels["dependency"] == "mkdirp"
    assert (task.labels["range"], task.labels["bad"], task.labels["good"]) == (kind, "1.0.0", "0.5.6")
    assert f'"mkdirp": "{broken}"' in (task.base_files["package.json"] or "")
    assert f'"mkdirp": "{gold}"' in (task.gold_files["package.json"] or "")
    assert funnel["search_runs"] >= 4
    other = settings.replace(declared, "0.5.6")
    spec = task_layers(task, context.store).spec(graded_files(task, {"package.json": other}))
    assert (await run_fresh(backend, spec, task_request(task))).passes(task.fail_to_pass + task.pass_to_pass)
    rebuilt = _recorded(task, package, context.store, tmp_path)
    assert rebuilt.model_dump(exclude={"certificate", "environment"}) == task.model_dump(
        exclude={"certificate", "environment"}
    )


def _recorded(task: Task, package: NpmPackage, store: LayerStore, folder: Path) -> Task:
    manifest = TaskManifest.create(folder / "made.toml", [task])
    assert manifest.add([task], {package.name: package})["recorded"] == 1
    content = manifest.load(package.name)
    return Rebuilder(manifest, content, store).rebuild(content.entries[task.id])
