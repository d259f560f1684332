"""Part of source `breakages`: repairs by which a release gave up names that its dependency was to lose.

Reads two pinned sdists, a release that uses such names and the next one, which does not (`Package.removals`). Makes one
task: the newer release without the changes of the places that have these names, in an environment of today's newest
dependencies. Guarantees: with the newest dependencies that have the names, all failing tests of the task pass on the
broken code, so that the dependency broke them and nothing else did.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Task, TestRun
from repairgym.tasks.build.assembly import sdist_provenance
from repairgym.tasks.build.test_files import SuiteMap, file_of, function_id
from repairgym.tasks.issues.describing import Report, describe
from repairgym.tasks.layers.catalogue import Package, Removal
from repairgym.tasks.layers.environments import build_environment, resolve_lock
from repairgym.tasks.layers.requirement_pins import pinned_versions, runtime_requirements
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.fixes import Fix, Hunk, aligned, find_hunks
from repairgym.tasks.sources.pairs import Origin, Pair, texts_of_both

MAX_FAILING = 60
"""Failing test functions that a task has at most: a broken import fails all of them."""
MAX_PASSING = 40
"""Passing tests that are run for their stability."""
MIN_SHARE_REPAIRED = 0.8
"""Share of the failing tests that the older dependency must repair; the others are no part of the task."""
_WORD = re.compile(r"\w+")
_PLACE = re.compile(r" \((unknown location|/[^)]*)\)")
_ISSUE = "{package} does not work with {dependency} {version}, while it worked with {good}: {message}"


@dataclass(frozen=True)
class Adaptation:
    """A release, the next one, and the names that it gave up."""

    package: Package
    removals: Sequence[Removal]
    context: BuildContext

    @property
    def versions(self) -> tuple[str, str]:
        """The older release and the newer one."""
        return self.removals[0].release, self.removals[0].adapted

    @property
    def newest_requirements(self) -> tuple[str, ...]:
        """Requirements of the tests and of the newer release."""
        tree = self.context.store.tree(self.package.sdist(self.versions[1]))
        return tuple(
            sorted(
                {
                    *self.package.requirements,
                    *runtime_requirements(tree),
                    *self._dependencies,
                    *self.removals[0].also_needed,
                }
            )
        )

    @property
    def _dependencies(self) -> list[str]:
        return [removal.dependency for removal in self.removals]

    async def task(self) -> Task | Drop:
        """Return the task, or the reason of its drop."""
        try:
            lock = resolve_lock(self.newest_requirements)
        except PackageNotFoundError as error:
            return Drop("not_lockable", f"{self.versions[1]}: {error}")
        pair = await self._pair(lock)
        fix = self._fix(pair)
        if not fix.hunks:
            return Drop("no_place_names_it", f"{self.versions}: {self.removals[0].words}")
        first = await pair.run(fix.broken_files, pair.suite_request())
        failing = pair.broken_of(first, tuple(pair.suite.num_executed))
        if not failing:
            return Drop("holds_with_newest", f"{self.versions}: {self.removals[0].names}")
        try:
            repaired = await self._repaired_by_old(pair, fix, failing)
        except PackageNotFoundError as error:
            return Drop("not_lockable", f"{self.versions[0]}: {error}")
        if len(repaired) < MIN_SHARE_REPAIRED * len(failing):
            rest = [i for i in failing if i not in set(repaired)][:3]
            told = f"{self.versions}: {len(repaired)} of {len(failing)}, not {rest}\n{first.output_tail}"
            return Drop("not_by_the_dependency", told)
        return await self._certified(pair, fix, first, failing, repaired, lock)

    async def _pair(self, lock: str) -> Pair:
        """Return the pair of releases in the environment of ``lock``; TaskError if no test of the newer is usable."""
        package, (base, version) = self.package, self.versions
        environment, spec = self.context.pinned_tree(lock, self.context.store.tree(package.sdist(version)))
        origin = Origin(
            project=package,
            source="breakages",
            provenance=sdist_provenance(package, version, base, "", spec.tree),
            base_tree=tree_digest(package.sdist(version)),
            environment=environment,
            config=self.context.config.releases,
            labels=self._labels(),
        )
        older, newer = texts_of_both(package, self.context.store.tree(package.sdist(base)), spec.tree)
        tests = package.test_files(spec.tree)
        return await Pair.set_up(origin, self.context, spec, tests, aligned(older, newer), newer)

    def _labels(self) -> dict[str, str]:
        names = " ".join(sorted({name for removal in self.removals for name in removal.names}))
        return {
            "operator": "newer_dependency",
            "error_class": "dependency",
            "dependency": " ".join(self._dependencies),
            "removed": names[:200],
        }

    def _fix(self, pair: Pair) -> Fix:
        """Return the changes of places that have the names."""
        words = {word for removal in self.removals for word in removal.words}
        hunks = [hunk for hunk in find_hunks(pair.older, pair.newer) if _has_words(hunk, words)]
        return Fix(tuple(hunk for hunk in hunks if pair.newer.get(hunk.path) is not None), pair.older, pair.newer)

    async def _repaired_by_old(self, pair: Pair, fix: Fix, failing: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of ``failing`` that pass on the broken code with the dependencies that have the names."""
        tree = self.context.store.tree(self.package.sdist(self.versions[0]))
        pins = [f"{removal.dependency}<{removal.bad}" for removal in self.removals]
        lock = resolve_lock(tuple(sorted({*self.package.requirements, *runtime_requirements(tree), *pins})))
        _, folder = build_environment(self.context.store, lock)
        spec = pair.spec.model_copy(update={"environment": folder, "tree": self._plain_tree()})
        run = await replace(pair, spec=spec).run(fix.broken_files, pair.bounded_request(failing))
        broken = set(pair.broken_of(run, failing))
        return tuple(test_id for test_id in failing if test_id not in broken)

    def _plain_tree(self) -> Path:
        return self.context.store.tree(self.package.sdist(self.versions[1]))

    async def _certified(
        self, pair: Pair, fix: Fix, first: TestRun, failing: tuple[str, ...], repaired: tuple[str, ...], lock: str
    ) -> Task | Drop:
        """Return the certified task of ``fix`` with some of the failing tests, or the reason of its drop."""
        own, broken = set(_some_of(repaired)), set(failing)
        others = [test_id for test_id in pair.suite.num_executed if test_id not in broken][:MAX_PASSING]
        pair = replace(pair, suite=_only(pair.suite, (*own, *others)))
        stable, _ = await pair.stable_tests()
        chosen = tuple(test_id for test_id in stable if test_id in own)
        if not chosen:
            return Drop("unstable", first.output_tail)
        pair.without[tuple(hunk.number for hunk in fix.hunks)] = first
        try:
            task = await pair.make_task(fix, stable, chosen)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))
        return describe(task, pair.spec.tree, self._report(pair, task, lock)) if isinstance(task, Task) else task

    def _report(self, pair: Pair, task: Task, lock: str) -> Report:
        failures = pair.failures[task.id]
        message = next((failure.message for failure in failures.values()), "its tests fail")
        named = (r for r in self.removals if any(name.partition(".")[0] in message for name in r.names))
        removal = next(named, self.removals[0])
        text = _ISSUE.format(
            package=self.package.name,
            dependency=removal.dependency,
            version=pinned_versions(lock)[removal.dependency],
            good=removal.good,
            message=_PLACE.sub("", message.strip().splitlines()[0])[:200],
        )
        return Report(text, "tests", failures)


def _has_words(hunk: Hunk, words: Iterable[str]) -> bool:
    return not set(_WORD.findall("".join(hunk.old_lines))).isdisjoint(words)


def _only(suite: SuiteMap, test_ids: Sequence[str]) -> SuiteMap:
    kept = set(test_ids)
    covering = {place: tuple(i for i in tests if i in kept) for place, tests in suite.covering.items()}
    return SuiteMap({i: number for i, number in suite.num_executed.items() if i in kept}, covering)


def _some_of(test_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the tests of at most `MAX_FAILING` functions, in turns over the files."""
    by_file: dict[str, dict[str, None]] = {}
    for test_id in test_ids:
        by_file.setdefault(file_of(test_id), {})[function_id(test_id)] = None
    turns = sorted(
        (place, number, name) for number, names in enumerate(by_file.values()) for place, name in enumerate(names)
    )
    chosen = {name for _, _, name in turns[:MAX_FAILING]}
    return tuple(test_id for test_id in test_ids if function_id(test_id) in chosen)
