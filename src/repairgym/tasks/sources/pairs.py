"""Pairs: two states of a project, with bugs and without, for the sources `releases` and `history`.

Reads the newer state as a pinned tree and the source texts of both. Makes runs with parts of the difference reverted,
and tasks. The tasks of a pair have one gold state: one gold run of each has exactly its tests, the others are the cold
runs of the suite that found the stable tests (`verify` shares nothing). Guarantees: everything but the sources stays as
in the newer state; every failing test of a task passes on the newer sources in every run and fails on the older ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from repairgym.config.tasks import PairConfig
from repairgym.errors import TaskError
from repairgym.records import Environment, Provenance, SourceKind, Task, TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, assemble, choose_visible, readable_text
from repairgym.tasks.build.test_files import SuiteMap, file_of, first_lines, function_id, functions_of, trace_suite
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.issues.describing import HALF, Failure, failures_of
from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.layers.catalogue import Project
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.fixes import Fix, Texts

BROKEN = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING)
_EXCEPTION = re.compile(r"(?:^|\bE\s+)([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt))\b")


@dataclass(frozen=True)
class Origin:
    """Origin of a pair: project, base tree, environment."""

    project: Project
    source: SourceKind
    provenance: Provenance
    """Provenance of every bug of the pair, without the recipe."""
    base_tree: str
    environment: Environment
    config: PairConfig
    created_at: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class SortedTests(NamedTuple):
    """Usable tests of a pair."""

    stable: tuple[str, ...]
    """Tests that pass in every run of the newer state."""
    unstable: tuple[str, ...]
    fixed: tuple[str, ...]
    """Stable tests that fail on the older sources; without any, all three are empty."""


@dataclass(frozen=True)
class Pair:
    """A runnable newer state, and the texts of both states."""

    origin: Origin
    context: BuildContext
    spec: SandboxSpec
    suite: SuiteMap
    older: Texts
    newer: Texts
    test_files: tuple[str, ...] = ()
    """Files of ``suite``."""
    baseline: list[TestRun] = field(default_factory=list)
    """Cold runs of the suite in the newer state, made by `stable_tests`."""
    without: dict[tuple[int, ...], TestRun] = field(default_factory=dict)
    """Numbers of a fix's hunks -> result of `run_without`."""
    before: dict[str, TestResult] = field(default_factory=dict)
    """Results of the suite on the older sources, made by `sort_tests`."""
    failures: dict[str, dict[str, Failure]] = field(default_factory=dict)
    """Task id -> failing test -> its failure without the repair."""

    @classmethod
    async def set_up(
        cls,
        origin: Origin,
        context: BuildContext,
        spec: SandboxSpec,
        test_files: tuple[str, ...],
        older: Texts,
        newer: Texts,
        is_traced: bool = True,
    ) -> Self:
        """Run ``test_files`` in the newer state, the tree of ``spec``; TaskError if no test is usable.

        Without ``is_traced``, which takes a multiple of the time, no test is known to execute a function.
        """
        request = context.request(origin.project, test_files, context.config.suite_timeout_s)
        spec = await context.compiled(spec, request)
        traced = request.model_copy(update={"traced_paths": tuple(newer) if is_traced else ()})
        suite = await trace_suite(
            context.backend, spec, traced, context.config.mutations.max_test_s, is_inherited_usable=True
        )
        return cls(origin, context, spec, suite, older, newer, test_files)

    async def stable_tests(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return usable tests that pass in every run of the newer state (traced and cold), and the others."""
        cold = self.suite_request().model_copy(update={"is_cold": True})
        num_runs = self.origin.config.num_baseline_runs - 1 - len(self.baseline)
        self.baseline.extend(await run_times(self.context.backend, self.spec, cold, num_runs))
        stable = {i: all(run.passes((i,)) for run in self.baseline) for i in self.suite.num_executed}
        return tuple(i for i in stable if stable[i]), tuple(i for i in stable if not stable[i])

    async def sort_tests(self) -> SortedTests:
        """Sort the usable tests. One run of the older state comes first: it detects pairs without fixes."""
        failing = await self._failing_before()
        if not failing:
            return SortedTests((), (), ())
        stable, unstable = await self.stable_tests()
        not_usable = set(unstable)
        return SortedTests(stable, unstable, tuple(test_id for test_id in failing if test_id not in not_usable))

    async def _failing_before(self) -> tuple[str, ...]:
        """Return usable tests that fail on the older sources."""
        paths = sorted(self.older.keys() | self.newer.keys())
        changed = {path: self.older.get(path) for path in paths if self.older.get(path) != self.newer.get(path)}
        run = await self.run(changed, self.suite_request())
        self.before.update(run.results)
        return self.broken_of(run, tuple(self.suite.num_executed))

    def is_half(self, without: TestRun, failing: tuple[str, ...]) -> bool:
        """Return True where each test of ``failing`` fails in another way without the fix than on the older sources.

        Then the broken code is a state that no release had: half of a change. A test that already stops at an earlier
        line of the older sources, or whose line is not known, may be alike.
        """
        return not any(may_be_alike(self.before.get(i), without.results.get(i)) for i in failing)

    @staticmethod
    def broken_of(run: TestRun, test_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the ``test_ids`` that ``run`` does not pass."""
        return tuple(test_id for test_id in test_ids if run.outcome(test_id) in BROKEN)

    async def make_task(self, fix: Fix, stable: tuple[str, ...], fixed: tuple[str, ...]) -> Task | Drop:
        """Return the task of a fix, without an issue text, or the reason of its drop."""
        whole = await self.run_without(fix, stable)
        failing = self.broken_of(whole, stable)
        if whole.is_timed_out:
            return Drop("timed_out", whole.output_tail)
        if any(whole.outcome(test_id) is TestOutcome.MISSING for test_id in failing):
            return Drop("not_collected", whole.output_tail)
        if not failing or not set(failing) <= set(fixed):
            others = sorted(set(failing) - set(fixed))
            return Drop("entangled", f"without it fail, too: {', '.join(others) or 'no tests'}\n{whole.output_tail}")
        broken = set(failing)
        neighbours = self._neighbours(fix, tuple(i for i in stable if i not in broken), failing)
        evidence = await self._prove(fix, failing + neighbours)
        fail_to_pass, pass_to_pass, _ = evidence.split_tests(failing + neighbours)
        if not fail_to_pass:
            return Drop("unstable", evidence.gold[0].output_tail)
        if not set(fail_to_pass) <= set(fixed):
            return Drop("entangled", f"fail only now and then: {', '.join(sorted(set(fail_to_pass) - set(fixed)))}")
        try:
            return self._assemble(fix, evidence, fail_to_pass, pass_to_pass)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    async def _prove(self, fix: Fix, test_ids: tuple[str, ...]) -> Evidence:
        config = self.context.config
        request = self.context.request(self.origin.project, test_ids, config.run_timeout_s)
        spec = self.spec.model_copy(update={"files": fix.broken_files})
        sealed = request.model_copy(update={"is_sealed": True})  # as in a grading
        shared = self.baseline[: config.num_certificate_runs - 1]
        empty = await run_times(self.context.backend, spec, request, config.num_certificate_runs)
        gold = await run_times(self.context.backend, self.spec, sealed, config.num_certificate_runs - len(shared))
        return Evidence(empty, [*gold, *shared])

    def _neighbours(self, fix: Fix, passing: tuple[str, ...], failing: tuple[str, ...]) -> tuple[str, ...]:
        """Return passing tests that execute the touched functions, then others of the failing tests' files.

        Tests of other functions come first: parameters of a failing function cannot be shown.
        """
        wanted, files = set(passing), {file_of(test_id) for test_id in failing}
        lines = {path: first_lines(path, self.newer.get(path) or "") for path in fix.gold_files}
        places = [(path, lines[path][span.first_line]) for path, span in fix.touched_functions()]
        near = [i for place in places for i in self.suite.covering.get(place, ()) if i in wanted]
        near += [test_id for test_id in passing if file_of(test_id) in files]
        hidden = set(functions_of(failing))
        ranked = sorted(dict.fromkeys(near), key=lambda test_id: function_id(test_id) in hidden)
        return tuple(ranked[: self.origin.config.num_passing_kept])

    def _assemble(self, fix: Fix, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]) -> Task:
        origin, empty = self.origin, evidence.empty[0]
        visibility = choose_visible(failing, passing, empty)
        labels = {"operator": origin.source.removesuffix("s"), "difficulty": str(len(fix.hunks))}
        labels |= {HALF: "true"} if self.is_half(empty, failing) else {}
        bug = Bug(
            project=origin.project,
            source=origin.source,
            provenance=origin.provenance.model_copy(
                update={"recipe": origin.provenance.recipe or fix.recipe(origin.provenance)}
            ),
            tree=self.spec.tree,
            base_tree=origin.base_tree,
            environment=origin.environment,
            broken=fix.broken_files,
            gold=fix.gold_files,
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            location=fix.location(),
            labels={**labels, **origin.labels, **_exception_label(empty, failing)},
            created_at=origin.created_at,
        )
        task = assemble(bug, "", self.context.config, origin.config.num_passing_kept)
        self.failures[task.id] = failures_of(empty, failing)
        return task

    def suite_request(self) -> TestRequest:
        """Return a request for every usable test."""
        usable = tuple(self.suite.num_executed)
        return self.context.request(self.origin.project, usable, self.context.config.suite_timeout_s)

    def bounded_request(self, test_ids: tuple[str, ...]) -> TestRequest:
        """Return a request for sources that may hang."""
        return self.context.request(self.origin.project, test_ids, self.origin.config.ablation_timeout_s)

    async def run_without(self, fix: Fix, stable: tuple[str, ...]) -> TestRun:
        """Run all ``stable`` tests of the pair with ``fix`` reverted, once per fix."""
        if not self.has_run_without(fix):
            self.without[fix.numbers] = await self.run(fix.broken_files, self.bounded_request(stable))
        return self.without[fix.numbers]

    def has_run_without(self, fix: Fix) -> bool:
        """Return True when `run_without` has a result for ``fix``."""
        return fix.numbers in self.without

    async def run(self, files: dict[str, str | None], request: TestRequest) -> TestRun:
        """Run ``request`` with ``files`` written over the newer state."""
        return await run_fresh(self.context.backend, self.spec.model_copy(update={"files": files}), request)


def may_be_alike(older: TestResult | None, newer: TestResult | None) -> bool:
    """Return whether a test may fail on the older sources for the reason for which it fails in the newer state."""
    if older is None or newer is None or not older.message or not newer.message:
        return True
    if without_run_text(older.message) == without_run_text(newer.message):
        return True
    return not older.line or not newer.line or older.line < newer.line


def _exception_label(run: TestRun, failing: tuple[str, ...]) -> dict[str, str]:
    """Return the label ``exception`` if all failing tests raise the same one."""
    names = {_exception_of(run.results[i].message if i in run.results else "") for i in failing}
    return {"exception": name} if len(names) == 1 and (name := names.pop()) else {}


def _exception_of(message: str) -> str:
    """Return the exception name at the start of a failure message; ``AssertionError`` for a bare ``assert``."""
    match = _EXCEPTION.search(message[:200])
    return match.group(1) if match else "AssertionError" if message.startswith("assert") else ""


def texts_of(project: Project, tree: Path) -> Texts:
    """Return the texts of the files of ``tree`` that may be broken; those that are no UTF-8 are left out."""
    return {path: text for path, text in _readable_texts(project, tree).items() if text is not None}


def texts_of_both(project: Project, older: Path, newer: Path) -> tuple[Texts, Texts]:
    """Return `texts_of` two trees, both without the files that are no UTF-8 in one of them: these stay as they are."""
    before, after = _readable_texts(project, older), _readable_texts(project, newer)
    unreadable = {path for texts in (before, after) for path, text in texts.items() if text is None}
    before = {path: text for path, text in before.items() if path not in unreadable}
    return before, {path: text for path, text in after.items() if path not in unreadable}


def _readable_texts(project: Project, tree: Path) -> dict[str, str | None]:
    return {path: readable_text(tree / path) for path in project.source_files(tree)}
