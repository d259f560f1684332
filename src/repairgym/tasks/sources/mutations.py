"""Task source `mutations`: synthetic bugs in real code, found by the package's own tests.

Reads a pinned sdist. Makes tasks with one mutated function, or several (`several_bugs`). One traced run of the suite
maps tests to functions. Each mutant then runs its function's most specific covering tests and a few tests of its
module's other functions; it becomes a task when at least two distinct test functions fail, so that one can be shown and
the other hidden, and at least one test passes. Functions take turns, so that a small quota still covers the package.
Results are consumed in a fixed order, and those of a function that has its share already are left out, so that neither
timing nor the number of concurrent runs has an influence.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Self

from repairgym.config.tasks import MutationConfig
from repairgym.errors import TaskError
from repairgym.records import Environment, Location, Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, assemble, choose_visible, readable_text, sdist_provenance
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.test_files import SuiteMap, file_of, first_lines, functions_of, trace_suite
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.issues.describing import Failure, failures_of
from repairgym.tasks.issues.localized import BrokenFunction, localized_issue
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.mutation.mutants import (
    MutableFunction,
    Mutant,
    broken_texts,
    has_odd_line_ends,
    mutable_functions,
    mutants,
)
from repairgym.tasks.mutation.operators import BYTE_ORDER_MARK, FunctionSpan
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.synthetic import LOCALIZATION, NUM_BUGS

MIN_FAILING_FUNCTIONS = 2
"""One failing test function to show, one to hide."""
NUM_GUARDS = 3
"""Tests of other functions that run with each mutant: most of them pass, and guard against regressions."""
RECIPE_SEPARATOR = "\n"
"""Between the edits of several bugs; no recipe of one bug has a line break."""


async def make_mutations(package: Package, context: BuildContext) -> SourceResult:
    """Make `mutations` tasks (see `TaskSource`)."""
    mutation_run = await MutationRun.set_up(package, context)
    targets, num_bugs = mutation_run.targets(), mutation_run.config.num_bugs
    result = SourceResult(funnel=Counter(functions=len(targets), **mutation_run.unusable_files()))
    accepted: list[MutantEvidence] = []
    num_accepted: Counter[Target] = Counter()
    queue = mutation_run.candidates(targets, num_accepted)
    async with aclosing(ordered_map(mutation_run.try_mutant, queue, context.config.num_concurrent)) as tried:
        async for (target, _), outcome in tried:
            # Drawn ahead, while an earlier one of its function ran; it must not count more with more in flight.
            if num_accepted[target] >= mutation_run.config.num_per_function:
                continue
            result.funnel["mutants_run"] += 1
            if isinstance(outcome, Drop):
                result.add(outcome)
                continue
            num_accepted[target] += 1
            accepted.append(outcome)
            if len(accepted) >= context.quota * num_bugs:
                break
    if not targets:
        for drop in mutation_run.unfit_functions():
            result.add(drop)
    if is_mostly_late(result.funnel):
        told = await mutation_run.told_time(targets[0].test_ids)
        result.logs["timed_out"] = f"{told}\n{result.logs['timed_out']}"
    if num_bugs > 1:
        accepted = await _combined(mutation_run, grouped(accepted, num_bugs), result)
    for made in await mutation_run.certify(accepted):
        result.add(made)
    return result


def is_mostly_late(funnel: Mapping[str, int]) -> bool:
    """Return True when more than half of the mutants that ran timed out."""
    return 2 * funnel.get("timed_out", 0) > funnel.get("mutants_run", 0)


async def _combined(
    mutation_run: "MutationRun", groups: "list[tuple[MutantEvidence, ...]]", result: SourceResult
) -> "list[MutantEvidence]":
    kept: list[MutantEvidence] = []
    num_concurrent = mutation_run.context.config.num_concurrent
    async with aclosing(ordered_map(mutation_run.combine, groups, num_concurrent)) as tried:
        async for _, outcome in tried:
            result.funnel["groups_run"] += 1
            if isinstance(outcome, Drop):
                result.add(outcome)
            else:
                kept.append(outcome)
    return kept


@dataclass(frozen=True, eq=False)
class Target:
    """A function and the tests of its mutants."""

    function: MutableFunction
    test_ids: tuple[str, ...]
    """Tests that execute it."""
    guards: tuple[str, ...]
    """Tests that do not."""


@dataclass(frozen=True)
class MutantEvidence:
    """Mutants that enough tests detect, with the runs of all of them together."""

    mutants: tuple[Mutant, ...]
    test_ids: tuple[str, ...]
    empty: list[TestRun]
    gold: TestRun
    alone: tuple[TestRun, ...]
    """One run of each mutant without the others."""


def grouped(accepted: Sequence[MutantEvidence], size: int) -> list[tuple[MutantEvidence, ...]]:
    """Return groups of ``size`` mutants of different functions, in order; a rest that makes no group is left out."""
    left, groups = list(accepted), []
    while left:
        group = [left.pop(0)]
        for other in list(left):
            if len(group) < size and other.mutants[0].function.place not in {
                e.mutants[0].function.place for e in group
            }:
                group.append(other)
                left.remove(other)
        if len(group) == size:
            groups.append(tuple(group))
    return groups


@dataclass(frozen=True)
class MutationRun:
    """The mutants of one package, tried in one environment."""

    package: Package
    context: BuildContext
    environment: Environment
    spec: SandboxSpec
    suite: SuiteMap
    gold_runs: dict[tuple[str, ...], TestRun] = field(default_factory=dict)
    """Tests -> their run on the package as it is."""
    gold_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def set_up(cls, package: Package, context: BuildContext) -> Self:
        """Build the layers and trace the suite."""
        environment, spec = context.pinned(package)
        tree, config = spec.tree, context.config
        bound = config.mutations.max_file_bytes
        test_files = _not_larger(tree, package.test_files(tree), bound)
        if not test_files:  # without any, the whole tree would be run
            raise TaskError(f"{package.name}: every test file is larger than mutations.max_file_bytes = {bound}")
        request = context.request(package, test_files, config.suite_timeout_s)
        traced = request.model_copy(update={"traced_paths": _not_larger(tree, package.source_files(tree), bound)})
        spec = await context.compiled(spec, request)
        suite = await trace_suite(context.backend, spec, traced, config.mutations.max_test_s)
        return cls(package, context, environment, spec, suite)

    @property
    def config(self) -> MutationConfig:
        """Settings of the source."""
        return self.context.config.mutations

    @property
    def covered_files(self) -> list[str]:
        """Files with functions that usable tests execute."""
        return sorted({path for path, _ in self.suite.covering})

    def unusable_files(self) -> Counter[str]:
        """Return reason -> number of the covered files that give no targets."""
        texts = (readable_text(self.spec.tree / path) for path in self.covered_files)
        return Counter(reason for text in texts if (reason := _unusable_reason(text)))

    def targets(self) -> list[Target]:
        """Functions that can be broken and are tried by enough test functions, in random order."""
        targets: list[Target] = []
        config = self.config
        bounds = config.min_function_lines, config.max_function_lines
        families = config.has_free_operators, config.has_semantic_operators
        for path in self.covered_files:
            source = readable_text(self.spec.tree / path)
            if source is None or _unusable_reason(source):
                continue
            lines = first_lines(path, source)
            near = self.tests_near(path)
            for function in mutable_functions(path, source, bounds, config.min_edits, *families):
                if target := self.target(function, [function.span], lines, near):
                    targets.append(target)
        random.Random(self.context.seed(self.package)).shuffle(targets)
        return targets

    def unfit_functions(self) -> Iterator[Drop]:
        """Yield why each function of the files that tests execute is no target, with the setting that says so."""
        config = self.config
        for path in self.covered_files:
            source = readable_text(self.spec.tree / path)
            for function in mutable_functions(path, source, (1, sys.maxsize)) if source else ():
                num_lines, where = function.span.num_code_lines, " ".join(function.place)
                if not config.min_function_lines <= num_lines <= config.max_function_lines:
                    least, most = config.min_function_lines, config.max_function_lines
                    told = f"{num_lines} lines; mutations.min_function_lines={least}, max_function_lines={most}"
                    yield Drop("functions_of_another_size", f"{where}: {told}")
                elif function.num_edits < config.min_edits:
                    told = f"{function.num_edits} edits; mutations.min_edits={config.min_edits}"
                    yield Drop("functions_with_few_edits", f"{where}: {told}")
                else:
                    told = f"fewer than {MIN_FAILING_FUNCTIONS} tests execute it within mutations.max_test_s"
                    yield Drop("functions_with_few_tests", f"{where}: {told}={config.max_test_s}")

    async def told_time(self, test_ids: tuple[str, ...]) -> str:
        """Return a sentence with the time of ``test_ids`` without a bug, and the settings that bound it."""
        config = self.context.config
        request = self.context.request(self.package, test_ids, config.suite_timeout_s)
        run = await run_fresh(
            self.context.backend, self.spec, request.model_copy(update={"test_timeout_s": config.suite_timeout_s})
        )
        slowest_s = max((result.duration_s for result in run.results.values()), default=0.0)
        return (
            f"most mutants timed out: without a bug the tests of one take {run.duration_s:.1f} s, the slowest "
            f"{slowest_s:.1f} s; raise run_timeout_s={config.run_timeout_s} and test_timeout_s={config.test_timeout_s}"
        )

    def target(
        self, function: MutableFunction, broken: Sequence[FunctionSpan], lines: Mapping[int, int], near: Set[str]
    ) -> Target | None:
        """Return ``function`` with tests of the ``broken`` functions of its file; None with too few.

        ``lines`` leads from the first line of a function to that of its decorators; ``near`` are tests of the file.
        """
        places = [(function.path, lines[span.first_line]) for span in broken]
        covering = tuple(dict.fromkeys(i for place in places for i in self.suite.covering.get(place, ())))
        test_ids = self.suite.most_specific(covering, self.config.num_tests)
        if len(functions_of(test_ids)) < MIN_FAILING_FUNCTIONS:
            return None
        return Target(function, test_ids, self._guards(near, covering, test_ids))

    def tests_near(self, path: str) -> Set[str]:
        """Return the tests that execute a function of the file ``path``."""
        return {i for (name, _), ids in self.suite.covering.items() if name == path for i in ids}

    def _guards(self, near: Set[str], covering: Sequence[str], test_ids: Sequence[str]) -> tuple[str, ...]:
        """Return tests that are not ``covering`` a function: those ``near`` it come first, small ones first."""
        own, files = set(covering), {file_of(test_id) for test_id in test_ids}

        def distance(test_id: str) -> tuple[bool, bool, int]:
            return test_id not in near, file_of(test_id) not in files, self.suite.num_executed[test_id]

        others = (test_id for test_id in self.suite.num_executed if test_id not in own)
        return tuple(nsmallest(NUM_GUARDS, others, key=distance))

    def candidates(self, targets: list[Target], num_kept: Counter[Target]) -> Iterator[tuple[Target, Mutant]]:
        """Yield mutants; targets take turns until they have their share or no mutant is left."""
        seed = self.context.seed(self.package)
        queues = {t: mutants(t.function, seed, self.config.two_edit_share) for t in targets}
        for _ in range(self.config.num_tries_per_function):
            for target in list(queues):
                is_wanted = num_kept[target] < self.config.num_per_function
                if is_wanted and (mutant := next(queues[target], None)):
                    yield target, mutant
                else:
                    del queues[target]

    async def try_mutant(self, candidate: tuple[Target, Mutant]) -> MutantEvidence | Drop:
        """Return the evidence that a mutant is a bug, or the reason of its drop."""
        target, mutant = candidate
        return await self._try((mutant,), target.test_ids, target.test_ids + target.guards)

    async def combine(self, group: tuple[MutantEvidence, ...]) -> MutantEvidence | Drop:
        """Return the evidence of several mutants together; each alone has to fail a test that fails with all."""
        test_ids = tuple(dict.fromkeys(test_id for evidence in group for test_id in evidence.test_ids))
        tried = await self._try(tuple(evidence.mutants[0] for evidence in group), test_ids, test_ids)
        if isinstance(tried, Drop):
            return tried
        alone = tuple(evidence.alone[0] for evidence in group)
        failing, _, _ = Evidence(tried.empty, [tried.gold]).split_tests(test_ids)
        if not all(any(_fails(run, test_id) for test_id in failing) for run in alone):
            return Drop("hidden_by_another_bug", tried.empty[0].output_tail)
        return MutantEvidence(tried.mutants, test_ids, tried.empty, tried.gold, alone)

    async def _try(
        self, chosen: tuple[Mutant, ...], deciding: tuple[str, ...], test_ids: tuple[str, ...]
    ) -> MutantEvidence | Drop:
        """Run ``test_ids`` with the mutants ``chosen``; those of ``deciding`` say what becomes of them."""
        first = await self._run_broken(chosen, test_ids)
        if reason := _drop_reason(first, deciding):
            return Drop(reason, f"{_recipe(chosen)}\n{first.output_tail}")
        gold = await self._gold_run(test_ids)
        failing, passing, _ = Evidence([first], [gold]).split_tests(test_ids)
        if len(functions_of(failing)) < MIN_FAILING_FUNCTIONS:
            return Drop("unstable", gold.output_tail)
        if not passing:
            return Drop("no_regression_test", _recipe(chosen))
        again = range(self.context.config.num_certificate_runs - 1)
        empty = [first, *[await self._run_broken(chosen, test_ids) for _ in again]]
        return MutantEvidence(chosen, test_ids, empty, gold, (first,))

    async def is_bug_alone(self, evidence: MutantEvidence, part: Mutant) -> bool:
        """Return True when some test that fails with all edits of ``evidence`` fails with those of ``part``, too."""
        run = await self._run_broken((part,), evidence.test_ids)
        failing, _, _ = Evidence(evidence.empty, [evidence.gold]).split_tests(evidence.test_ids)
        return any(_fails(run, test_id) for test_id in failing)

    async def _run_broken(self, chosen: tuple[Mutant, ...], test_ids: tuple[str, ...]) -> TestRun:
        spec = self.spec.model_copy(update={"files": broken_texts(chosen)})
        return await run_fresh(self.context.backend, spec, self._request(test_ids))

    async def certify(self, accepted: list[MutantEvidence]) -> list[Task | Drop]:
        """Return the task of each of ``accepted``, or the reason of its drop; make the shared gold runs.

        They are cold: a new interpreter reveals ids and outcomes that depend on addresses (the hash of None).
        """
        if not accepted:
            return []  # a request for no tests would run all of the tree
        used = {test_id for detected in accepted for test_id in detected.test_ids}
        test_ids = tuple(test_id for test_id in self.suite.num_executed if test_id in used)
        config = self.context.config
        request = self.context.request(self.package, test_ids, config.suite_timeout_s)
        cold = request.model_copy(update={"is_cold": True})
        shared = await run_times(self.context.backend, self.spec, cold, config.num_certificate_runs - 1)
        return [self._task(detected, Evidence(detected.empty, [detected.gold, *shared])) for detected in accepted]

    def _task(self, detected: MutantEvidence, evidence: Evidence) -> Task | Drop:
        failing, passing, _ = evidence.split_tests(detected.test_ids)
        if len(functions_of(failing)) < MIN_FAILING_FUNCTIONS or not passing:
            return Drop("unstable", evidence.gold[-1].output_tail)
        try:
            return self._assemble(detected, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    async def _gold_run(self, test_ids: tuple[str, ...]) -> TestRun:
        async with self.gold_lock:
            if test_ids not in self.gold_runs:
                # Sealed, as a grading is: a test that cannot be sealed does not count.
                request = self._request(test_ids).model_copy(update={"is_sealed": True})
                self.gold_runs[test_ids] = await run_fresh(self.context.backend, self.spec, request)
            return self.gold_runs[test_ids]

    def _request(self, test_ids: tuple[str, ...]) -> TestRequest:
        return self.context.request(self.package, test_ids, self.context.config.run_timeout_s)

    def _assemble(
        self, detected: MutantEvidence, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]
    ) -> Task:
        chosen = detected.mutants
        visibility = choose_visible(failing, passing, evidence.empty[0])
        recipe, span = _recipe(chosen), chosen[0].function.span
        broken = broken_texts(chosen)
        bugs = _broken_functions(detected, failing, visibility.reported)
        seed = f"{self.context.seed(self.package)}:{recipe}"
        wanted = random.Random(f"{seed}:{LOCALIZATION}").choice(self.config.localizations)
        issue, localization = localized_issue(bugs, wanted, self.spec.tree, seed)
        bug = Bug(
            project=self.package,
            source="mutations",
            provenance=sdist_provenance(self.package, self.package.version, "", recipe, self.spec.tree),
            tree=self.spec.tree,
            base_tree=tree_digest(self.package.sdist()),
            environment=self.environment,
            broken=broken,
            gold={mutant.function.path: mutant.function.source for mutant in chosen},
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            location=Location(
                path=bugs[0].path, name=bugs[0].name, first_line=span.first_line, last_line=span.last_line
            ),
            labels={**_labels(chosen), LOCALIZATION: localization},
        )
        return assemble(bug, issue, self.context.config, self.config.num_passing_kept)


def _recipe(chosen: Sequence[Mutant]) -> str:
    """Return where and how ``chosen`` differ from the package, a line each."""
    return RECIPE_SEPARATOR.join(f"{' '.join(mutant.function.place)} {mutant.recipe}" for mutant in chosen)


def _labels(chosen: Sequence[Mutant]) -> dict[str, str]:
    operators = "+".join(sorted({operator for mutant in chosen for operator in mutant.operator.split("+")}))
    labels = {"operator": operators, "difficulty": str(sum(len(mutant.mutations) for mutant in chosen))}
    return {**labels, **({NUM_BUGS: str(len(chosen))} if len(chosen) > 1 else {})}


def _broken_functions(detected: MutantEvidence, failing: Sequence[str], reported: str) -> list[BrokenFunction]:
    """Return each bug with its failures, ``reported`` first; the failures of one bug come from its own run."""
    bugs = []
    for mutant, alone in zip(detected.mutants, detected.alone, strict=True):
        own = [test_id for test_id in failing if _fails(alone, test_id)]
        ordered = sorted(own, key=lambda test_id: test_id != reported)
        told = failures_of(alone, ordered)
        failures = {test_id: told.get(test_id, Failure("")) for test_id in ordered}
        bugs.append(BrokenFunction(*mutant.function.place, failures))
    return bugs


def _unusable_reason(source: str | None) -> str:
    """Return why no function of a file can be broken, whatever it holds; empty for none. None is no UTF-8."""
    if source is None:
        return "files_no_utf8"
    if source.startswith(BYTE_ORDER_MARK):
        return "files_with_byte_order_mark"
    return "files_with_odd_line_ends" if has_odd_line_ends(source) else ""


def _not_larger(tree: Path, paths: tuple[str, ...], num_bytes: int) -> tuple[str, ...]:
    return tuple(path for path in paths if (tree / path).stat().st_size <= num_bytes)


def _fails(run: TestRun, test_id: str) -> bool:
    return run.outcome(test_id) in (TestOutcome.FAILED, TestOutcome.ERROR)


def _drop_reason(run: TestRun, test_ids: tuple[str, ...]) -> str:
    """Return the reason to drop a mutant after its first run; empty for none."""
    failing = [test_id for test_id in test_ids if run.outcome(test_id) is TestOutcome.FAILED]
    if run.is_timed_out or any(run.results[i].message.startswith("timed out") for i in failing):
        return "timed_out"
    if any(run.outcome(i) in (TestOutcome.ERROR, TestOutcome.MISSING) for i in test_ids):
        return "does_not_import"
    if not failing:
        return "survived"
    return "" if len(functions_of(failing)) >= MIN_FAILING_FUNCTIONS else "one_test_only"
