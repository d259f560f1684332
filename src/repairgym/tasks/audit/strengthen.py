"""Stronger tests for certified tasks: regression tests of the touched modules, and differential tests.

Reads the tasks of one pinned tree. Makes the tasks again with more tests. Guarantees: id, issue, gold patch and visible
tests stay, and so does the agent's tree; a task keeps every test that it had; it stays as it was when its new form does
not certify in fresh sandboxes.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from repairgym.errors import TaskError
from repairgym.records import Record, Task, TestOutcome
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.audit.audit import TaskTrial, TreeAudit, own_tests
from repairgym.tasks.audit.differential import DifferentialTests, Survivor, make_tests
from repairgym.tasks.audit.suite import FunctionPlace, TreeSuite, read_suite
from repairgym.tasks.audit.variants import VariantBounds, wrong_variants
from repairgym.tasks.build.test_files import conftest_paths, file_of
from repairgym.tasks.build.validation import gather_evidence, graded_files, run_fresh, task_request
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.java.project import is_java_check
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore, tree_with_files

LEAST_TESTS = 5
"""Tests that a task gets however slow they are."""
_FAILED = (TestOutcome.FAILED, TestOutcome.ERROR)


class StrengthenBounds(Record):
    """Bounds of new tests."""

    variants: VariantBounds = VariantBounds(operators=8)
    seconds: float = 0.5
    """Most gold time of a task's tests of the suite."""
    num_tests: int = 120
    """Most tests of the suite that a task gets."""
    num_runs: int = 3
    """Empty runs and gold runs."""


@dataclass
class Strengthened:
    """The tasks of one tree with their new tests."""

    tasks: list[Task] = field(default_factory=list)
    funnel: Counter[str] = field(default_factory=Counter)


async def strengthen_tree(
    tasks: Sequence[Task], store: LayerStore, backend: SandboxBackend, bounds: StrengthenBounds, num_concurrent: int = 2
) -> Strengthened:
    """Return ``tasks``, which share a tree, with stronger tests."""
    suite = await read_suite(tasks, store, backend, bounds.num_runs)
    return await strengthen_tasks(tasks, TreeAudit(suite, backend, store, tasks), bounds, num_concurrent)


async def strengthen_tasks(
    tasks: Sequence[Task], tree: TreeAudit, bounds: StrengthenBounds, num_concurrent: int
) -> Strengthened:
    """Return ``tasks`` of ``tree`` with stronger tests."""
    limit, survivors = asyncio.Semaphore(num_concurrent), list[Survivor]()

    async def add_tests_of_suite(task: Task) -> Task:
        if is_wheel_check(task.fail_to_pass) or is_java_check(task.fail_to_pass):
            return task  # its tests compare what a build makes; the project's own say nothing about settings
        async with limit:
            wider = await _with_regression_tests(task, tree, bounds)
            better, told = await _with_refuting_tests(wider, tree, bounds)
            survivors.extend(told)
            return better

    better = await asyncio.gather(*map(add_tests_of_suite, tasks))
    tests = await make_tests(survivors, tree, bounds.num_runs)
    result = Strengthened(funnel=Counter(differential_tests=len(tests.texts), survivors=len(survivors)))

    async def certify(old: Task, new: Task) -> Task:
        async with limit:
            places = {
                place for survivor in survivors if survivor.task.id == new.id for place in survivor.variant.places
            }
            new = await with_differential_tests(new, tests, places, tree)
            kept, outcome = await certified(old, new, tree, bounds.num_runs)
            result.funnel[outcome] += 1
            result.funnel["without_pass_to_pass"] += not kept.pass_to_pass
            return kept

    result.tasks = list(await asyncio.gather(*map(certify, tasks, better)))
    return result


# --- tests of the suite ----------------------------------------------------------------------------------------------


def regression_tests(suite: TreeSuite, task: Task, bounds: StrengthenBounds) -> tuple[str, ...]:
    """Return stable tests of the modules that the gold patch touches: functions take turns, small tests first.

    Every test of the suite is considered when none executes a touched module.
    """
    candidates = suite.of_files(task.gold_files)
    functions: dict[FunctionPlace, list[str]] = {}
    for test_id in candidates:
        for place in sorted(suite.executed[test_id]):
            if place[0] in task.gold_files:
                functions.setdefault(place, []).append(test_id)
    turns = tuple(dict.fromkeys(zip_turns([*functions.values()] or [list(candidates)])))
    chosen = suite.within(turns, bounds.seconds)[: bounds.num_tests]
    return tuple(dict.fromkeys((*chosen, *turns[:LEAST_TESTS])))


def zip_turns(queues: Sequence[Sequence[str]]) -> list[str]:
    """Return the first item of each queue, then the second ones, and so on."""
    most = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(most) for queue in queues if turn < len(queue)]


async def _with_regression_tests(task: Task, tree: TreeAudit, bounds: StrengthenBounds) -> Task:
    own = set(own_tests(task))
    new = tuple(i for i in regression_tests(tree.suite, task, bounds) if i not in own)
    task = await _with_stable_tests(task, new, tree)
    if task.pass_to_pass:
        return task
    # Every test of the module fails before the repair: others guard the package.
    tried = {*own_tests(task), *new}
    others = tuple(i for i in tree.suite.of_functions(()) if i not in tried)
    return await _with_stable_tests(task, others[:LEAST_TESTS], tree)


async def _with_stable_tests(task: Task, new: tuple[str, ...], tree: TreeAudit) -> Task:
    """Add ``new``, which pass on gold, to the tests of ``task`` by their outcome on the broken code."""
    if not new:
        return task
    run = await run_fresh(tree.backend, tree.suite.layers.spec(graded_files(task)), task_request(task, new))
    tree.note({path: task.base_files.get(path) for path in task.gold_files}, run)
    failing = tuple(i for i in new if run.outcome(i) in _FAILED and not run.is_timed_out)
    return with_tests(task, failing, tuple(i for i in new if run.outcome(i) is TestOutcome.PASSED), tree)


def with_tests(task: Task, failing: tuple[str, ...], passing: tuple[str, ...], tree: TreeAudit) -> Task:
    """Return ``task`` with further tests, which grading restores."""
    files = {file_of(test_id) for test_id in failing + passing}
    conftests = {path for path in conftest_paths(files) if (tree.suite.layers.tree / path).is_file()}
    return task.model_copy(
        update={
            "fail_to_pass": task.fail_to_pass + failing,
            "pass_to_pass": task.pass_to_pass + passing,
            "test_paths": tuple(sorted({*task.test_paths, *files, *conftests})),
        }
    )


async def _with_refuting_tests(task: Task, tree: TreeAudit, bounds: StrengthenBounds) -> tuple[Task, list[Survivor]]:
    """Add a test of the suite for each surviving variant that one refutes; return the survivors of probes, too."""
    survivors = []
    for variant in wrong_variants(task, tree.tasks, bounds.variants, tree.suite.layers.tree):
        trial = TaskTrial(tree, task)
        if await trial.refuting_test(variant.files, own_tests(task)):
            continue
        if test_id := await trial.refuting_test(variant.files, trial.further_tests(variant)):
            task = await _with_stable_tests(task, (test_id,), tree)
        elif told := await tree.probe(task, variant):
            survivors.append(Survivor(task, variant, tuple(told)))
    return task, survivors


# --- differential tests and certificates -----------------------------------------------------------------------------


async def with_differential_tests(
    task: Task, tests: DifferentialTests, places: set[FunctionPlace], tree: TreeAudit
) -> Task:
    """Pin the generated file to ``task`` and add its tests of ``places``; the agent's tree does not hold the file."""
    names = tests.about(places)
    if not names:
        return task
    layers, origin = tree.suite.layers, task.provenance
    ids = tuple(f"{tests.path}::{name}" for name in names)
    spec = layers.spec({**graded_files(task), tests.path: tests.text})
    run = await run_fresh(tree.backend, spec, task_request(task, ids))
    failing = tuple(i for i in ids if run.outcome(i) in _FAILED) if task.source == "mutations" else ()
    passing = tuple(i for i in ids if run.outcome(i) is TestOutcome.PASSED)
    if not failing and not passing:
        return task
    sdist = Sdist(name=origin.package, version=origin.version, sha256=origin.sdist_sha256)
    pinned = {**task.pinned_files, tests.path: tests.text}
    update = {
        "pinned_files": pinned,
        "base_tree": tree_with_files(tree.store, sdist, pinned).name,
        "base_files": {**task.base_files, tests.path: None},
    }
    return with_tests(task, failing, passing, tree).model_copy(update=update)


def _with_lists(old: Task, new: Task, failing: tuple[str, ...], passing: tuple[str, ...], tree: TreeAudit) -> Task:
    """Return ``new`` with these tests, and only with the test files and pinned files that they are in."""
    held = with_tests(old, failing, passing, tree)
    files = {file_of(test_id) for test_id in failing + passing}
    dropped = {path for path in new.pinned_files if path not in old.pinned_files and path not in files}
    update = {"fail_to_pass": failing, "pass_to_pass": passing, "test_paths": held.test_paths}
    if dropped:
        update |= {name: getattr(old, name) for name in ("pinned_files", "base_tree", "base_files")}
    return new.model_copy(update=update)


async def certified(old: Task, new: Task, tree: TreeAudit, num_runs: int) -> tuple[Task, str]:
    """Return ``new`` with its certificate and without unstable tests; ``old`` when it does not certify."""
    if own_tests(old) == own_tests(new):
        return old, "unchanged"
    try:
        evidence = await gather_evidence(new, tree.store, tree.backend, num_runs, tree.suite.cold_runs)
    except TaskError:
        return old, "not_certified"
    failing, passing, _ = evidence.split_tests(own_tests(new))
    if set(own_tests(old)) - {*failing, *passing}:
        return old, "not_certified"
    kept = _with_lists(old, new, failing, passing, tree)
    certificate = evidence.certificate(failing, passing)
    if not certificate.is_valid:
        return old, "not_certified"
    return kept.model_copy(update={"certificate": certificate}), "strengthened"
