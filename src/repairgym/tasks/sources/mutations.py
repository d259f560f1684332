"""Task source `mutations`: synthetic bugs in real code, found by the package's own tests.

Reads a pinned sdist. Makes tasks with one mutated function. One traced run of the suite maps tests to functions. Each
mutant then runs its function's most specific covering tests; it becomes a task when at least two distinct test
functions fail, so that one can be shown and the other hidden. Functions take turns, so that a small quota still covers
the package. Results are consumed in a fixed order, so that timing has no influence.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from repairgym.config.tasks import MutationConfig
from repairgym.errors import TaskError
from repairgym.records import Environment, Location, Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, assemble, choose_visible, mutation_issue, read_text, sdist_provenance
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.test_files import SuiteMap, first_lines, functions_of, trace_suite
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.operators import FunctionSpan, Mutation, Site, apply, find_functions, find_sites
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult, shuffled_turns

_ODD_LINE_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters on which Python's ``splitlines`` and the parser disagree about line numbers."""


@dataclass(frozen=True)
class MutableFunction:
    """A function with its mutation sites."""

    path: str
    source: str
    span: FunctionSpan
    sites: tuple[Site, ...]

    @property
    def num_edits(self) -> int:
        """Number of possible single edits."""
        return sum(len(site.alternatives) for site in self.sites)


@dataclass(frozen=True)
class Mutant:
    """A function with one edit or two."""

    function: MutableFunction
    mutations: tuple[Mutation, ...]

    @property
    def text(self) -> str:
        """The whole module with the edits."""
        return apply(self.function.source, *self.mutations)

    @property
    def operator(self) -> str:
        """Operator families of the edits, joined by ``+``."""
        return "+".join(sorted({mutation.site.operator for mutation in self.mutations}))

    @property
    def recipe(self) -> str:
        """The edits in words, ``12:5: < -> <=`` with line and column from 1; unique in a module."""
        return "; ".join(f"{m.site.line}:{m.site.column + 1}: {m.site.old} -> {m.new}" for m in self.mutations)


def mutable_functions(
    path: str, source: str, num_lines: tuple[int, int], min_edits: int = 1, has_free_operators: bool = False
) -> list[MutableFunction]:
    """Return functions of ``source`` with ``num_lines`` (least, most) lines of code and at least ``min_edits`` edits.

    With ``has_free_operators`` the families of `free_operators` take turns with those of `operators`.
    """
    if any(character in source for character in _ODD_LINE_ENDS):
        return []
    try:
        spans = find_functions(source)
        sites = find_sites(source) + (find_free_sites(source) if has_free_operators else [])
    except SyntaxError:
        return []
    functions = [MutableFunction(path, source, span, tuple(_sites_in(span, sites))) for span in spans]
    return [f for f in functions if f.num_edits >= min_edits and num_lines[0] <= f.span.num_code_lines <= num_lines[1]]


def _sites_in(span: FunctionSpan, sites: list[Site]) -> Iterator[Site]:
    first, last = span.docstring_lines
    for site in sites:
        if span.first_line <= site.line <= span.last_line and not (first <= site.line <= last):
            yield site


def mutants(function: MutableFunction, seed: str, two_edit_share: float) -> Iterator[Mutant]:
    """Yield all mutants of ``function``: families in turn, each in random order."""
    random_state = random.Random(f"{seed}:{function.path}:{function.span.qualified_name}:{function.span.first_line}")
    families: dict[str, list[Mutation]] = defaultdict(list)
    for site in function.sites:
        families[site.operator].extend(Mutation(site, new) for new in site.alternatives)
    singles = shuffled_turns(families, random_state)
    for number, mutation in enumerate(singles):
        partner = singles[(number + 1) % len(singles)]
        is_apart = partner.site.line != mutation.site.line
        if is_apart and random_state.random() < two_edit_share:
            yield Mutant(function, (mutation, partner))
        else:
            yield Mutant(function, (mutation,))


MIN_FAILING_FUNCTIONS = 2
"""One failing test function to show, one to hide."""


async def make_mutations(package: Package, context: BuildContext) -> SourceResult:
    """Make `mutations` tasks (see `TaskSource`)."""
    mutation_run = await MutationRun.set_up(package, context)
    targets = mutation_run.targets()
    result = SourceResult(funnel=Counter(functions=len(targets)))
    accepted: list[MutantEvidence] = []
    num_accepted: Counter[Target] = Counter()
    queue = mutation_run.candidates(targets, num_accepted)
    async with aclosing(ordered_map(mutation_run.try_mutant, queue, context.config.num_concurrent)) as tried:
        async for (target, _), outcome in tried:
            result.funnel["mutants_run"] += 1
            if isinstance(outcome, Drop):
                result.add(outcome)
                continue
            num_accepted[target] += 1
            accepted.append(outcome)
            if len(accepted) >= context.quota:
                break
    for made in await mutation_run.certify(accepted):
        result.add(made)
    return result


@dataclass(frozen=True, eq=False)
class Target:
    """A function and the tests of its mutants."""

    function: MutableFunction
    test_ids: tuple[str, ...]


@dataclass(frozen=True)
class MutantEvidence:
    """A mutant that enough tests detect, with its runs."""

    target: Target
    mutant: Mutant
    empty: list[TestRun]
    gold: TestRun


@dataclass(frozen=True)
class MutationRun:
    """The mutants of one package, tried in one environment."""

    package: Package
    context: BuildContext
    environment: Environment
    spec: SandboxSpec
    suite: SuiteMap
    gold_runs: dict[Target, TestRun] = field(default_factory=dict)
    gold_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def set_up(cls, package: Package, context: BuildContext) -> Self:
        """Build the layers and trace the suite."""
        environment, spec = context.pinned(package)
        tree, config = spec.tree, context.config
        bound = config.mutations.max_file_bytes
        request = context.request(package, _not_larger(tree, package.test_files(tree), bound), config.suite_timeout_s)
        traced = request.model_copy(update={"traced_paths": _not_larger(tree, package.source_files(tree), bound)})
        spec = await context.compiled(spec, request)
        suite = await trace_suite(context.backend, spec, traced, config.mutations.max_test_s)
        return cls(package, context, environment, spec, suite)

    @property
    def config(self) -> MutationConfig:
        """Settings of the source."""
        return self.context.config.mutations

    def targets(self) -> list[Target]:
        """Functions that can be broken and are tried by enough test functions, in random order."""
        targets: list[Target] = []
        config = self.config
        bounds = config.min_function_lines, config.max_function_lines
        for path in sorted({path for path, _ in self.suite.covering}):
            source = read_text(self.spec.tree / path)
            lines = first_lines(source)
            for function in mutable_functions(path, source, bounds, config.min_edits, config.has_free_operators):
                covering = self.suite.covering.get((path, lines[function.span.first_line]), ())
                test_ids = self.suite.most_specific(covering, config.num_tests)
                if len(functions_of(test_ids)) >= MIN_FAILING_FUNCTIONS:
                    targets.append(Target(function, test_ids))
        random.Random(self.context.seed(self.package)).shuffle(targets)
        return targets

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
        request = self._request(target.test_ids)
        spec = self.spec.model_copy(update={"files": {mutant.function.path: mutant.text}})
        first = await run_fresh(self.context.backend, spec, request)
        if reason := _drop_reason(first, target.test_ids):
            log = f"{mutant.function.path} {mutant.function.span.qualified_name} {mutant.recipe}\n{first.output_tail}"
            return Drop(reason, log)
        gold = await self._gold_run(target)
        failing, _, _ = Evidence([first], [gold]).split_tests(target.test_ids)
        if len(functions_of(failing)) < MIN_FAILING_FUNCTIONS:
            return Drop("unstable", gold.output_tail)
        again = self.context.config.num_certificate_runs - 1
        empty = [first, *await run_times(self.context.backend, spec, request, again)]
        return MutantEvidence(target, mutant, empty, gold)

    async def certify(self, accepted: list[MutantEvidence]) -> list[Task | Drop]:
        """Return the task of each mutant, or the reason of its drop; make the shared gold runs.

        They are cold: a new interpreter reveals ids and outcomes that depend on addresses (the hash of None).
        """
        used = {test_id for detected in accepted for test_id in detected.target.test_ids}
        test_ids = tuple(test_id for test_id in self.suite.num_executed if test_id in used)
        config = self.context.config
        request = self.context.request(self.package, test_ids, config.suite_timeout_s)
        cold = request.model_copy(update={"is_cold": True})
        shared = await run_times(self.context.backend, self.spec, cold, config.num_certificate_runs - 1)
        return [self._task(detected, Evidence(detected.empty, [detected.gold, *shared])) for detected in accepted]

    def _task(self, detected: MutantEvidence, evidence: Evidence) -> Task | Drop:
        failing, passing, _ = evidence.split_tests(detected.target.test_ids)
        if len(functions_of(failing)) < MIN_FAILING_FUNCTIONS:
            return Drop("unstable", evidence.gold[-1].output_tail)
        try:
            return self._assemble(detected.mutant, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    async def _gold_run(self, target: Target) -> TestRun:
        async with self.gold_lock:
            if target not in self.gold_runs:
                request = self._request(target.test_ids)
                self.gold_runs[target] = await run_fresh(self.context.backend, self.spec, request)
            return self.gold_runs[target]

    def _request(self, test_ids: tuple[str, ...]) -> TestRequest:
        return self.context.request(self.package, test_ids, self.context.config.run_timeout_s)

    def _assemble(self, mutant: Mutant, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]) -> Task:
        function, span = mutant.function, mutant.function.span
        visibility = choose_visible(failing, passing, evidence.empty[0])
        recipe = f"{function.path} {span.qualified_name} {mutant.recipe}"
        bug = Bug(
            project=self.package,
            source="mutations",
            provenance=sdist_provenance(self.package, self.package.version, "", recipe, self.spec.tree),
            tree=self.spec.tree,
            base_tree=tree_digest(self.package.sdist()),
            environment=self.environment,
            broken={function.path: mutant.text},
            gold={function.path: function.source},
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            location=Location(
                path=function.path, name=span.qualified_name, first_line=span.first_line, last_line=span.last_line
            ),
            labels={"operator": mutant.operator, "difficulty": str(len(mutant.mutations))},
        )
        message = evidence.empty[0].results[visibility.reported].message
        seed = f"{self.context.seed(self.package)}:{recipe}"
        issue = mutation_issue(span.qualified_name, function.path, message, random.Random(seed))
        return assemble(bug, issue, self.context.config, self.config.num_passing_kept)


def _not_larger(tree: Path, paths: tuple[str, ...], num_bytes: int) -> tuple[str, ...]:
    return tuple(path for path in paths if (tree / path).stat().st_size <= num_bytes)


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
