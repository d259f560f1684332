"""The whole suite of a tree: which tests are stable on the gold code, what they execute, and the calls that they make.

Reads tasks of one pinned tree and its layers. Makes a `TreeSuite`, which every task of the tree shares. Guarantees: a
stable test passed in every gold run, cold ones included; nothing is chosen by a measured time but what is too slow.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.errors import InputError, TaskError
from repairgym.records import Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import (
    TaskLayers,
    graded_files,
    pinned_tree,
    plain_layers,
    run_fresh,
    task_layers,
    task_request,
)
from repairgym.tasks.java.project import is_java_check
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.layers.bytecode import tree_with_bytecode
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.store import LayerStore

CATALOGUES = ("catalog/packages.toml", "")
"""Catalogues that know which test files of a package are fast and deterministic; then the demo's."""
NPM_CATALOGUE = "catalog/npm.toml"
SUITE_TIMEOUT_S = 120.0
CALLS_S = 10.0
"""Processor time in which the calls of a suite are recorded."""
MAX_TEST_S = 1.0
"""Slower tests are no regression tests."""
FunctionPlace = tuple[str, int]
"""(path, first line with decorators)."""


@dataclass(frozen=True)
class Call:
    """A call that a test of the package makes, as text."""

    receiver: str
    """Expression of the object of a method; empty for a function."""
    call: str
    reaches: frozenset[FunctionPlace]
    """Functions of the package that it executes."""


@dataclass(frozen=True)
class TreeSuite:
    """The stable tests of one tree with the gold code."""

    layers: TaskLayers
    durations_s: Mapping[str, float]
    """Stable test -> its shortest duration, which another process delayed least; in collection order."""
    executed: Mapping[str, frozenset[FunctionPlace]]
    calls: tuple[Call, ...] = ()
    cold_runs: tuple[TestRun, ...] = ()
    """Gold runs in new interpreters."""
    start_s: float = 0.0
    """Longest time that a run took besides its tests: to start an interpreter, to import, to collect."""
    measured_s: Mapping[str, float] = field(default_factory=dict)
    """As `durations_s`, of every test that ran."""

    def seconds_of(self, test_ids: Collection[str], is_whole: bool) -> list[float]:
        """Return what the known ones of ``test_ids`` take; where files run whole, what every test of theirs takes."""
        files = {file_of(test_id) for test_id in test_ids}
        if is_whole:
            return [seconds for i, seconds in self.measured_s.items() if "::" in i and file_of(i) in files]
        return [self.durations_s[i] for i in test_ids if i in self.durations_s]

    def of_functions(self, places: Collection[FunctionPlace]) -> tuple[str, ...]:
        """Return the tests that execute one of ``places``, smallest first; every test when there are none."""
        return self._smallest_first(i for i in self.durations_s if not places or self.executed[i] & set(places))

    def of_files(self, paths: Collection[str]) -> tuple[str, ...]:
        """Return the tests that execute a function of ``paths``, smallest first; every test when none does."""
        own = [i for i in self.durations_s if any(path in paths for path, _ in self.executed[i])]
        return self._smallest_first(own or self.durations_s)

    def within(self, test_ids: Iterable[str], seconds: float) -> tuple[str, ...]:
        """Return the first of ``test_ids`` that together take at most ``seconds``."""
        chosen, total = [], 0.0
        for test_id in test_ids:
            total += self.durations_s[test_id]
            if total <= seconds:
                chosen.append(test_id)
        return tuple(chosen)

    def _smallest_first(self, test_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(test_ids, key=lambda i: (len(self.executed[i]), i)))


async def read_suite(
    tasks: Sequence[Task], store: LayerStore, backend: SandboxBackend, num_runs: int, has_calls: bool = True
) -> TreeSuite:
    """Run the suite of the tree of ``tasks`` ``num_runs`` times with the gold code; TaskError without a stable test.

    Of a Java build there is none but the task's own tests.
    """
    first = tasks[0]
    if is_java_check(first.fail_to_pass):
        return TreeSuite(task_layers(first, store), {}, {})  # its tests are one build, with the whole suite in it
    files = tuple(dict.fromkeys((*suite_files(tasks, pinned_tree(first, store)), *_files_of(tasks))))
    layers = await _compiled_layers(first, files, store, backend)
    spec = layers.spec(_gold_files(first))
    gold = {path for task in tasks for path in task.gold_files}
    traced = tuple(sorted(path for path in gold if path.endswith(".py") or is_javascript(path)))
    request = task_request(first, files).model_copy(update={"timeout_s": SUITE_TIMEOUT_S, "traced_paths": traced})
    runs = [await run_fresh(backend, spec, request)]
    again = request.model_copy(update={"traced_paths": (), "is_cold": True})
    runs += [await run_fresh(backend, spec, again) for _ in range(num_runs - 1)]
    fastest = {i: min(run.results[i].duration_s for run in runs if i in run.results) for i in runs[0].results}
    stable = {i: seconds for i, seconds in fastest.items() if seconds <= MAX_TEST_S and _is_usable(i, runs)}
    if not stable:
        raise TaskError(f"no test of {', '.join(files)} is stable: {runs[0].output_tail[-300:]}")
    executed = {i: frozenset(map(_place, runs[0].executed_functions.get(i, ()))) for i in stable}
    is_python = first.runner.type == "pytest" and bool(traced)
    calls = await _record_calls(backend, spec, request) if has_calls and is_python else ()
    start_s = max(run.duration_s - sum(result.duration_s for result in run.results.values()) for run in runs)
    return TreeSuite(layers, stable, executed, calls, tuple(runs[1:]), max(0.0, start_s), fastest)


async def _compiled_layers(
    task: Task, files: tuple[str, ...], store: LayerStore, backend: SandboxBackend
) -> TaskLayers:
    """Return the layers of ``task`` with byte-code of its package and of the test files; without it if they fail."""
    if task.environment.image is not None:
        return task_layers(task, store)  # its tree has what the image compiled
    environment, tree = plain_layers(task, store)
    spec = SandboxSpec(environment=environment, tree=tree)
    if any(path.endswith(".py") for path in task.gold_files) and task.runner.type == "pytest":
        with contextlib.suppress(TaskError):
            await tree_with_bytecode(store, backend, spec, task_request(task, files), SUITE_TIMEOUT_S)
    return task_layers(task, store)


def suite_files(tasks: Sequence[Task], tree: Path) -> tuple[str, ...]:
    """Return the test files of the package: those of its catalogue entry, or all in the folders of the tasks' tests."""
    name, is_node = tasks[0].provenance.package, tasks[0].runner.is_node
    for path in (NPM_CATALOGUE,) if is_node else CATALOGUES:
        try:
            catalogue = load_catalogue(Path(path) if path else None)
            packages: Sequence[Package] = catalogue.npm if is_node else catalogue.package
            known = {package.name: package for package in packages}
            if name in known:
                return known[name].test_files(tree)
        except (InputError, TaskError):
            continue
    own = _files_of(tasks)
    folders = {PurePosixPath(path).parent.as_posix() for path in own}
    names = _endings(own) if is_node else ("test_*.py", "*_test.py")
    paths = {path for folder in folders for pattern in names for path in (tree / folder).glob(pattern)}
    return tuple(sorted(path.relative_to(tree).as_posix() for path in paths))


def _endings(paths: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the endings of ``paths``: ``*.test.ts`` of ``a.test.ts``; sources may lie in their folders."""
    names = (PurePosixPath(path).name for path in paths)
    return tuple(sorted({f"*{name[name.index('.', 1) :]}" for name in names}))


def _files_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the files of the tests that decide ``tasks``."""
    return tuple(sorted({file_of(i) for task in tasks for i in (*task.fail_to_pass, *task.pass_to_pass)}))


def _gold_files(task: Task) -> dict[str, str | None]:
    return graded_files(task, task.gold_files)


def _is_usable(test_id: str, runs: Sequence[TestRun]) -> bool:
    is_passing = all(run.outcome(test_id) is TestOutcome.PASSED for run in runs)
    return is_passing and "::" in test_id and " at 0x" not in test_id


def _place(text: str) -> FunctionPlace:
    path, _, line = text.rpartition("::")
    return path, int(line)


# --- code inside of a sandbox ----------------------------------------------------------------------------------------


async def _record_calls(backend: SandboxBackend, spec: SandboxSpec, request: TestRequest) -> tuple[Call, ...]:
    sent = {"tests": request.test_ids, "files": request.traced_paths, "plugins": request.plugins, "seconds": CALLS_S}
    answers = await run_inside(backend, spec, {**sent, "source_paths": request.source_paths}, 3 * CALLS_S)
    calls = []
    for answer in answers:
        reaches = frozenset(_place(str(place)) for place in answer["reaches"])
        calls.append(Call(str(answer["receiver"]), str(answer["call"]), reaches))
    return tuple(calls)


async def run_inside(
    backend: SandboxBackend, spec: SandboxSpec, request: Mapping[str, Any], timeout_s: float, hash_seed: int = 0
) -> list[Any]:
    """Send ``request`` to `guest/calls.py` in a fresh sandbox and return the lines that it wrote before its end."""
    code = resources.files("repairgym.tasks.audit.guest").joinpath("calls.py").read_text("utf-8")
    sandbox = await backend.create(spec)
    try:
        done = await sandbox.exec(
            ("python", "-c", code),
            timeout_s=timeout_s,
            stdin=json.dumps(request).encode(),
            env={"PYTHONHASHSEED": str(hash_seed)},
        )
    finally:
        await sandbox.close()
    lines = done.stdout.decode(errors="replace").splitlines()
    answers = []
    for line in lines:
        try:
            answers.append(json.loads(line))
        except ValueError:
            break
    return answers


def by_tree(tasks: Iterable[Task]) -> list[list[Task]]:
    """Group tasks that share gold code, environment and runner, and so one suite."""
    groups: dict[tuple[object, ...], list[Task]] = defaultdict(list)
    for task in tasks:
        groups[suite_key(task)].append(task)
    return list(groups.values())


def suite_key(task: Task) -> tuple[object, ...]:
    """Return what a suite depends on; generated test files are no part of it, checks of broken builds are."""
    origin = task.provenance
    tree = task.base_tree if task.source == "breakages" else origin.sdist_sha256 + origin.commit or task.base_tree
    return tree, task.environment.digest, task.source_paths, task.plugins, task.runner.digest()
