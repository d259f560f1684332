"""Tasks of a package of npm: from two releases to certified tasks, verdicts, and a manifest that rebuilds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.pipeline import GradingConfig
from repairgym.config.tasks import MutationConfig, RebuildConfig, ReleaseConfig, TasksConfig
from repairgym.grading.grader import Grader
from repairgym.records import Task, VerdictKind
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.validation import gather_evidence, task_layers
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.sight.scan import scan_tasks
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.mutations import make_mutations
from repairgym.tasks.sources.releases import make_releases

pytestmark = pytest.mark.asyncio
Tiny = tuple[NpmPackage, LayerStore, Path]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(TasksConfig().sandbox)
    yield made
    await made.close()


async def made_tasks(tinymath: Tiny, backend: SandboxBackend, source: str) -> SourceResult:
    package, store, folder = tinymath
    config = TasksConfig(
        locks=str(folder / "locks"), test_timeout_s=10, run_timeout_s=30,
        mutations=MutationConfig(num_per_function=1), releases=ReleaseConfig(splits=("train",)),
    )  # fmt: skip
    make = make_releases if source == "releases" else make_mutations
    return await make(package, BuildContext(store, backend, config, 1))


async def test_a_release_becomes_a_task_that_gold_passes_and_nothing_else(
    tinymath: Tiny, backend: SandboxBackend, tmp_path: Path
) -> None:
    package, store, folder = tinymath
    (task,) = (await made_tasks(tinymath, backend, "releases")).tasks
    assert set(task.fail_to_pass) == {
        "test/index.test.js::clamp::returns the upper bound", "test/index.test.js::clamp::takes (equal) bounds",
    }  # fmt: skip
    assert task.id.startswith("tiny-math-1.1.0-release-")
    assert task.certificate.is_valid
    assert "upper bound for larger values" in task.issue
    assert "clamp: takes [equal] bounds fails: AssertionError: Expected values to be strictly equal: " in task.issue
    assert "expected 1, got 7\n\n    assert.strictEqual(clamp(7, 1, 1), 1);" in task.issue
    assert "expected 5, got 7\n\n    assert.strictEqual(clamp(7, 1, 5), 5);" in task.issue
    assert task.base_files["dist/math.min.js"] is None
    (hidden,) = set(task.fail_to_pass) - set(task.visible_tests)
    shown = task.base_files["test/index.test.js"] or ""
    title = hidden.rpartition("::")[2].replace("(", "[").replace(")", "]")
    assert title not in shown
    assert "keeps values between the bounds" in shown
    evidence = await gather_evidence(task, store, backend, num_runs=1)
    assert evidence.certificate(task.fail_to_pass, task.pass_to_pass).is_valid
    await _check_verdicts(task, store, backend)
    _check_rebuilt(task, package, store, tmp_path, folder / "locks/npm")


async def _check_verdicts(task: Task, store: LayerStore, backend: SandboxBackend) -> None:
    config = GradingConfig(is_replayed=False)
    grader = Grader(backend, lambda t, files: task_layers(t, store).spec(files), config, ExecutionCache(8))
    gold, empty = await grader.grade(task, dict(task.gold_files)), await grader.grade(task, {})
    assert (gold.kind, empty.kind) == (VerdictKind.PASSED, VerdictKind.FAILED)
    assert gold.num_canaries
    assert {finding.detector for finding in gold.findings} == {"no_second_judge"}
    broken = {**task.gold_files, "index.js": "module.exports = {"}
    assert (await grader.grade(task, broken)).kind is VerdictKind.FAILED
    shadowed = {"node_modules/x/index.js": "module.exports = 1;\n", "test/index.test.js": "process.exit(0)\n"}
    assert (await grader.grade(task, shadowed)).kind is VerdictKind.FAILED


def _check_rebuilt(task: Task, package: NpmPackage, store: LayerStore, folder: Path, locks: Path) -> None:
    (folder / "tiny.toml").write_text(
        f'entries = "tiny"\nlocks = "{locks}"\nmax_build_s = 100.0\ntest_timeout_s = 20.0\ntimeout_s = 60.0\n',
        encoding="utf-8",
    )
    manifest = TaskManifest(folder / "tiny.toml")
    assert manifest.add([task], {package.name: package}) == {"recorded": 1}
    assert manifest.names() == [package.name]
    assert manifest.load(package.name).entries[task.id].lock == "@tiny+math.json"
    rebuilt = rebuild_manifest(manifest, folder / "again", RebuildConfig(), store).load()
    assert [(other.id, other.fail_to_pass, other.gold_patch) for other in rebuilt] == [
        (task.id, task.fail_to_pass, task.gold_patch)
    ]


async def test_a_mutation_becomes_a_task(tinymath: Tiny, backend: SandboxBackend, tmp_path: Path) -> None:
    package, store, folder = tinymath
    result = await made_tasks(tinymath, backend, "mutations")
    assert len(result.tasks) == 1, (result.funnel, result.logs)
    (task,) = result.tasks
    assert task.certificate.is_valid
    assert task.location is not None
    assert task.location.name in ("clamp", "sum")
    assert task.pass_to_pass
    _check_rebuilt(task, package, store, tmp_path, folder / "locks/npm")


async def test_a_scan_finds_a_built_copy_that_the_agent_sees(tinymath: Tiny, backend: SandboxBackend) -> None:
    _, store, _ = tinymath
    (task,) = (await made_tasks(tinymath, backend, "releases")).tasks
    files = {path: text for path, text in task.base_files.items() if text is not None}
    shown = task.model_copy(update={"id": "shown", "base_files": files})
    found = [seen async for *_, part in scan_tasks([task, shown], store, backend, has_system=False) for seen in part]
    assert {(seen.task_id, seen.kind, seen.path) for seen in found} == {("shown", "built copy", "dist/math.min.js")}
