"""Certificates: the empty patch fails and the gold patch passes, each time, in fresh sandboxes.

Reads a task's trees and tests. Makes test runs and `Certificate` records. Every run has its own sandbox of the pinned
layers. During a build, tasks with the same gold tree (of one package, pair of releases or build) share gold runs: one
run has exactly the task's tests (shared by the mutants of one function, which have the same tests), the others have the
tests of all of them, each in a cold interpreter. Verification (`gather_evidence`) shares nothing and repeats every run.
"""

import asyncio
import contextlib
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from repairgym.errors import SandboxError, TaskError
from repairgym.records import Certificate, MeasuredUse, Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import ImageRoot, SandboxBackend, SandboxLimits, SandboxSpec
from repairgym.sandbox.guest.rootfs import TESTBED
from repairgym.tasks.build.wheel_check import WheelCheck, is_wheel_check
from repairgym.tasks.layers.bytecode import stale_bytecode, tree_with_bytecode, twin_digest
from repairgym.tasks.layers.environments import build_environment, without_package
from repairgym.tasks.layers.images.installed import root_of_id
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.repositories import GitRepository, commit_tree
from repairgym.tasks.layers.store import LayerStore, tree_with_files


async def run_fresh(
    backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, is_trial: bool = False
) -> TestRun:
    """Run ``request`` once in its own sandbox; the check of a wheel in its own ones, in a trial with one build.

    A failure of the infrastructure is retried once (then SandboxError); a failure of the code inside never.
    """
    try:
        return await _run(backend, spec, request, is_trial)
    except SandboxError:
        return await _run(backend, spec, request, is_trial)


async def _run(backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, is_trial: bool) -> TestRun:
    if is_wheel_check(request.test_ids):
        return await WheelCheck.of(backend, spec, is_trial).run(request)
    sandbox = await backend.create(spec)
    try:
        return await sandbox.run_tests(request)
    finally:
        await sandbox.close()


async def run_times(backend: SandboxBackend, spec: SandboxSpec, request: TestRequest, num_runs: int) -> list[TestRun]:
    """Run ``request`` ``num_runs`` times in sequence, each in a fresh sandbox."""
    return [await run_fresh(backend, spec, request) for _ in range(num_runs)]


def unstable_ids(runs: Sequence[TestRun]) -> frozenset[str]:
    """Return ids whose outcome differs between ``runs``."""
    ids = {test_id for run in runs for test_id in run.results}
    return frozenset(test_id for test_id in ids if len({run.outcome(test_id) for run in runs}) > 1)


@dataclass(frozen=True)
class Evidence:
    """The runs behind a certificate: without the repair and with it."""

    empty: Sequence[TestRun]
    gold: Sequence[TestRun]

    def split_tests(self, test_ids: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Split ``test_ids`` into (fail to pass, pass to pass, unstable); ids that fail with the repair are in none."""
        unstable = unstable_ids(self.empty) | unstable_ids(self.gold)
        good = [i for i in test_ids if i not in unstable and self.gold[0].outcome(i) is TestOutcome.PASSED]
        passing = tuple(i for i in good if self.empty[0].outcome(i) is TestOutcome.PASSED)
        failing = tuple(i for i in good if self.empty[0].outcome(i) in (TestOutcome.FAILED, TestOutcome.ERROR))
        return failing, passing, tuple(sorted(unstable))

    def certificate(self, fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...]) -> Certificate:
        """Return the certificate of these tests.

        An empty run *failed* when each of ``fail_to_pass`` failed; a gold run *passed* when every test passed, and no
        record of it counts as forged, as in a grading.
        """
        wanted = fail_to_pass + pass_to_pass
        own = {test_id for run in self.empty for test_id in run.results}
        return Certificate(
            num_empty_runs=len(self.empty),
            num_empty_failed=sum(_all_fail(run, fail_to_pass) and run.passes(pass_to_pass) for run in self.empty),
            num_gold_runs=len(self.gold),
            num_gold_passed=sum(run.passes(wanted) and not run.num_forged_records for run in self.gold),
            unstable_tests=tuple(sorted((unstable_ids(self.empty) | unstable_ids(self.gold)) & own)),
            empty_duration_s=_mean_duration_s(self.empty),
            # Shared runs also have the tests of other tasks: their duration does not count here.
            gold_duration_s=_mean_duration_s([run for run in self.gold if run.results.keys() <= own] or self.gold),
            tool_versions=tool_versions(),
        )


def _all_fail(run: TestRun, test_ids: tuple[str, ...]) -> bool:
    return all(run.outcome(test_id) in (TestOutcome.FAILED, TestOutcome.ERROR) for test_id in test_ids)


def _mean_duration_s(runs: Sequence[TestRun]) -> float:
    return round(sum(run.duration_s for run in runs) / max(len(runs), 1), 3)


def tool_versions() -> dict[str, str]:
    """Return the versions of the certifying tools."""
    return {"python": platform.python_version(), "uv": version("uv")}


# --- tasks as sandboxes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskLayers:
    """The layers of a task on this machine."""

    environment: Path
    """With `root` a folder of the image."""
    tree: Path
    root: ImageRoot | None = field(default=None, hash=False)
    repository: str = TESTBED
    """Folder of the image whose place the tree takes."""
    use: MeasuredUse | None = None
    """Needs of the task, where its certificate measured them."""

    def spec(self, files: dict[str, str | None], limits: SandboxLimits | None = None) -> SandboxSpec:
        """Return a sandbox of the pinned tree with ``files`` written over it and without their byte-code.

        ``limits`` are raised to what the task needs.
        """
        bounds = limits or SandboxLimits()
        if self.use is not None:
            memory_bytes = max(bounds.memory_bytes, self.use.memory_limit_bytes)
            disk_bytes = max(bounds.disk_bytes, self.use.disk_limit_bytes)
            bounds = bounds.model_copy(update={"memory_bytes": memory_bytes, "disk_bytes": disk_bytes})
        return SandboxSpec(
            environment=self.environment,
            tree=self.tree,
            files={**stale_bytecode(self.tree, files), **files},
            links={} if self.repository == TESTBED else {self.repository: TESTBED},
            root=self.root,
            limits=bounds,
        )


def task_layers(task: Task, store: LayerStore) -> TaskLayers:
    """Return the environment and tree of ``task``; build missing ones.

    The environment does not hold the package itself.

    Raises:
        IndexUnavailableError: a layer is missing and no index answers.
        TaskError: the tree is not the one the task was made from, or this Python is another minor version.
    """
    if task.source == "imported":
        layers = imported_layers(task, store)
        twin = store.find("bytecode", twin_digest(layers.tree, layers.environment)) if layers.root is None else None
        return replace(layers, tree=twin or layers.tree)
    if not task.runner.is_node and task.environment.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        raise TaskError(
            f"{task.id} was certified with Python {task.environment.python}, this is {platform.python_version()}; "
            "use the same minor version or build the tasks again"
        )
    environment, tree = build_environment(store, task.environment.lock)[1], pinned_tree(task, store)
    tree = store.find("bytecode", twin_digest(tree, environment)) or tree
    if is_wheel_check(task.fail_to_pass) or any(path.endswith(".py") for path in task.gold_files):
        environment = without_package(store, environment, task.provenance.package, task.source_paths)
    return TaskLayers(environment, tree)


def imported_layers(task: Task, store: LayerStore) -> TaskLayers:
    """Return the layers of an imported task, which only its build, or a pull, can make; TaskError if they are gone."""
    tree = store.find("trees", task.base_tree)
    if tree is None:
        raise TaskError(f"the tree of {task.id} is not on this machine; build it: repairgym tasks build --imported")
    if (used := task.environment.image) is not None:
        root = root_of_id(store, used.image_id, used.name)
        return TaskLayers(Path(used.folder), tree, root, used.repository, task.certificate.use)
    environment = store.find("environments", task.environment.digest)
    if environment is None:
        raise TaskError(
            f"the environment of {task.id} is not on this machine; build it: repairgym tasks build --imported"
        )
    return TaskLayers(environment, tree, use=task.certificate.use)


def plain_layers(task: Task, store: LayerStore) -> tuple[Path, Path]:
    """Return environment and tree of ``task`` as they were made: with the package and without byte-code.

    Raises what `task_layers` raises.
    """
    if task.source == "imported":
        layers = imported_layers(task, store)
        return layers.environment, layers.tree
    return build_environment(store, task.environment.lock)[1], pinned_tree(task, store)


async def make_bytecode(task: Task, backend: SandboxBackend, store: LayerStore) -> None:
    """Make the byte-code of the tree of ``task``, where no build left it: without, each sandbox compiles the package.

    A tree whose tests cannot be collected stays without. Raises what `task_layers` raises.
    """
    if task.environment.image is not None or task.runner.is_node:
        return  # its tests run on the image's Python, whose byte-code the tree has, or in node
    environment, tree = plain_layers(task, store)
    if not store.has("bytecode", twin_digest(tree, environment)):
        spec, request = SandboxSpec(environment=environment, tree=tree), task_request(task, task.test_paths)
        with contextlib.suppress(TaskError):
            await tree_with_bytecode(store, backend, spec, request, request.timeout_s)


def pinned_tree(task: Task, store: LayerStore) -> Path:
    """Return the pinned tree of ``task``; make a missing one from an sdist or a commit and its extra files.

    It raises IndexUnavailableError and TaskError as `task_layers` does.
    """
    if built := store.find("trees", task.base_tree):
        return built
    if task.source == "imported":
        return imported_layers(task, store).tree
    provenance = task.provenance
    if provenance.repository:
        clone = GitRepository.open(provenance.repository, store, provenance.subdirectory)
        tree = commit_tree(store, clone, provenance.commit, provenance.package, provenance.version)
    elif not provenance.sdist_sha256:
        raise TaskError(
            f"{task.id} names neither a release nor a commit as the origin of its tree; build the tasks again"
        )
    else:
        sdist = Sdist(name=provenance.package, version=provenance.version, sha256=provenance.sdist_sha256)
        tree = tree_with_files(store, sdist, task.pinned_files) if task.pinned_files else store.tree(sdist)
    if tree.name != task.base_tree:
        raise TaskError(f"{task.id}: tree {task.base_tree[:12]} cannot be made by this version; build the tasks again")
    return tree


def graded_files(task: Task, repair: dict[str, str | None] | None = None) -> dict[str, str | None]:
    """Return the files over the pinned tree for grading: the agent's base with ``repair``.

    ``task.test_paths`` are left out, so that the sandbox shows the pinned test files.
    """
    files = {**task.base_files, **(repair or {})}
    return {path: text for path, text in files.items() if path not in task.test_paths}


def task_request(task: Task, test_ids: tuple[str, ...] | None = None, is_cold: bool = False) -> TestRequest:
    """Return the request that decides ``task``, or one for ``test_ids``."""
    return TestRequest(
        test_ids=task.fail_to_pass + task.pass_to_pass if test_ids is None else test_ids,
        timeout_s=task.timeout_s,
        test_timeout_s=task.test_timeout_s,
        source_paths=task.source_paths,
        plugins=task.plugins,
        is_cold=is_cold,
        runner=task.runner,
    )


def check_tests(task: Task) -> None:
    """Check the test lists of ``task``; TaskError if a test is in both, a visible test in none, or nothing fails."""
    both = set(task.fail_to_pass) & set(task.pass_to_pass)
    stray = set(task.visible_tests) - set(task.fail_to_pass) - set(task.pass_to_pass)
    if both or stray or not task.fail_to_pass:
        raise TaskError(
            f"{task.id}: {len(both)} tests are in fail_to_pass and pass_to_pass, {len(stray)} visible tests are in "
            f"neither, {len(task.fail_to_pass)} fail to pass; expected 0, 0 and at least 1"
        )


async def gather_evidence(
    task: Task, store: LayerStore, backend: SandboxBackend, num_runs: int = 3, shared: Sequence[TestRun] = ()
) -> Evidence:
    """Repeat the certifying runs of ``task``: ``num_runs`` empty and gold runs in fresh sandboxes.

    Of the gold runs, ``shared`` are there already: those of the same gold tree that hold every test of ``task``. The
    others are sealed, as a grading is: a test that cannot be sealed is unstable.
    """
    check_tests(task)
    layers = task_layers(task, store)
    request = task_request(task)
    sealed = request.model_copy(update={"is_sealed": True})
    empty, gold = layers.spec(graded_files(task)), layers.spec(graded_files(task, task.gold_files))
    shared = [run for run in shared if run.results.keys() >= set(request.test_ids)][: num_runs - 1]
    empty_runs, gold_runs = await asyncio.gather(
        run_times(backend, empty, request, num_runs), run_times(backend, gold, sealed, num_runs - len(shared))
    )
    return Evidence(empty_runs, [*gold_runs, *shared])
