"""Part of source `breakages`: repairs by which a release gave up names that its dependency was to lose.

Reads two pinned sdists, a release that uses such names and the next one, which does not (`Package.removals`). Makes one
task: the newer release without the changes of the places that have these names, in an environment of today's newest
dependencies. Guarantees: with the newest dependencies that have the names, all failing tests of the task pass on the
broken code, so that the dependency broke them and nothing else did.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Environment, Task, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import readable_text, sdist_provenance
from repairgym.tasks.build.test_files import SuiteMap, file_of, function_id
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.issues.describing import Report, describe
from repairgym.tasks.layers.catalogue import Package, Removal
from repairgym.tasks.layers.environments import build_environment, requirement_name, resolve_lock
from repairgym.tasks.layers.package_index import PackageIndex
from repairgym.tasks.layers.requirement_pins import pinned_versions, runtime_requirements
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.fixes import Fix, Hunk, Texts, aligned, find_hunks
from repairgym.tasks.sources.pairs import BROKEN, Origin, Pair, texts_of_both

MAX_FAILING = 60
"""Failing test functions that a task has at most: a broken import fails all of them."""
MAX_TRIED = 120
"""Failing test functions that are tried: no task has more than a part of them."""
MAX_PASSING = 40
"""Passing tests that are run for their stability."""
MIN_SHARE_REPAIRED = 0.8
"""Share of the failing tests that the older dependency must repair; the others are no part of the task."""
_WORD = re.compile(r"\w+")
_TEST = re.compile(r"^\s*(?:async )?def test", re.MULTILINE)
_PLACE = re.compile(r" \((unknown location|/[^)]*)\)")
_ISSUE = "{package} does not work with {dependency} {version}, while it worked with {good}: {message}"


@dataclass(frozen=True)
class _Case:
    """A fix, the run of the suite without it, and the tests that fail there."""

    fix: Fix
    first: TestRun
    failing: tuple[str, ...]
    repaired: tuple[str, ...] = ()
    """Those of ``failing`` that older dependencies repair."""

    def repaired_in(self, run: TestRun) -> Self:
        """Return the case with the failing tests that pass in ``run``."""
        broken = set(Pair.broken_of(run, self.failing))
        return replace(self, repaired=tuple(test_id for test_id in self.failing if test_id not in broken))

    @property
    def share(self) -> float:
        """Share of the failing tests that older dependencies repair; 0 without failing tests."""
        return len(self.repaired) / len(self.failing) if self.failing else 0.0

    def told(self, run: TestRun) -> str:
        """Say which failing tests fail in ``run``, too."""
        rest = Pair.broken_of(run, self.failing)
        return f"{len(self.failing) - len(rest)} of {len(self.failing)}, not {rest[:3]}"


class _Tried(NamedTuple):
    """Runs with older dependencies."""

    best: _Case
    is_sound: bool
    """The failing tests pass on the newer release."""
    told: str


@dataclass(frozen=True)
class Adaptation:
    """A release, the next one, and the names that it gave up."""

    package: Package
    removals: Sequence[Removal]
    context: BuildContext
    index: PackageIndex = field(default_factory=PackageIndex)

    @property
    def versions(self) -> tuple[str, str]:
        """The older release and the newer one."""
        return self.removals[0].release, self.removals[0].adapted

    @property
    def newest_requirements(self) -> tuple[str, ...]:
        """Requirements of the newer release, with the bounds that its other lost names need."""
        tree = self.context.store.tree(self.package.sdist(self.versions[1]))
        return (*runtime_requirements(tree), *self._dependencies, *self.removals[0].also_needed)

    @property
    def _dependencies(self) -> list[str]:
        return [removal.dependency for removal in self.removals]

    async def task(self) -> Task | Drop:
        """Return the task, or the reason of its drop."""
        older, newer = self._texts()
        fix = self._fix(older, newer)
        if not fix.hunks:
            return Drop("no_place_names_it", f"{self.versions}: {self.removals[0].words}")
        try:
            lock, old_lock = self._lock(self.newest_requirements), self._old_lock()
        except PackageNotFoundError as error:
            return Drop("not_lockable", f"{self.versions}: {error}")
        environment, spec = self.context.pinned_tree(lock, self._plain_tree())
        files = await self._chosen_files(spec, fix)
        if not files:
            return Drop("holds_with_newest", f"{self.versions}: {self.removals[0].names}")
        pair = await self._pair(environment, spec, files, (older, newer))
        case = await self._case(pair, fix)
        if not case.failing:
            return Drop("holds_with_newest", f"{self.versions}: {self.removals[0].names}")
        proven = await self._proven(pair, case, old_lock)
        return proven if isinstance(proven, Drop) else await self._certified(pair, proven, lock)

    async def _case(self, pair: Pair, fix: Fix) -> _Case:
        """Run the suite without ``fix``."""
        first = await pair.run(fix.broken_files, pair.suite_request())
        return _Case(fix, first, pair.broken_of(first, tuple(pair.suite.num_executed)))

    def _texts(self) -> tuple[Texts, Texts]:
        """Return the texts of both releases, under the paths of the newer one."""
        trees = (self.context.store.tree(self.package.sdist(version)) for version in self.versions)
        older, newer = texts_of_both(self.package, *trees)
        return aligned(older, newer), newer

    async def _chosen_files(self, spec: SandboxSpec, fix: Fix) -> tuple[str, ...]:
        """Return the test files; where tests are many, the smallest files with failures without ``fix``."""
        files = self.package.test_files(spec.tree)
        sizes = {path: len(_TEST.findall(readable_text(spec.tree / path) or "")) for path in files}
        if sum(sizes.values()) <= MAX_TRIED:
            return files
        request = self.context.request(self.package, files, self.context.config.suite_timeout_s)
        run = await run_fresh(self.context.backend, spec.model_copy(update={"files": fix.broken_files}), request)
        sound = {file_of(i) for i in run.results} - {file_of(i) for i in run.results if run.outcome(i) in BROKEN}
        failing = sorted((path for path in files if path not in sound), key=lambda path: sizes[path])
        chosen = set(failing[:1])
        for path in failing:
            if sum(sizes[other] for other in {*chosen, path}) <= MAX_TRIED:
                chosen.add(path)
        return tuple(path for path in files if path in chosen)

    async def _pair(
        self, environment: Environment, spec: SandboxSpec, files: tuple[str, ...], texts: tuple[Texts, Texts]
    ) -> Pair:
        """Return the pair of releases with the tests of ``files``; TaskError if none of them is usable."""
        package, (base, version) = self.package, self.versions
        origin = Origin(
            project=package,
            source="breakages",
            provenance=sdist_provenance(package, version, base, "", spec.tree),
            base_tree=tree_digest(package.sdist(version)),
            environment=environment,
            config=self.context.config.releases,
            labels=self._labels(),
        )
        return await Pair.set_up(origin, self.context, spec, files, *texts, is_traced=False)

    def _labels(self) -> dict[str, str]:
        names = " ".join(sorted({name for removal in self.removals for name in removal.names}))
        return {
            "operator": "newer_dependency",
            "error_class": "dependency",
            "dependency": " ".join(self._dependencies),
            "removed": names[:200],
        }

    def _fix(self, older: Texts, newer: Texts) -> Fix:
        """Return the changes of places that have the names, or all changes if only files that are gone have them."""
        words = {word for removal in self.removals for word in removal.words}
        changes = find_hunks(older, newer)
        named = [hunk for hunk in changes if _has_words(hunk, words)]
        hunks = [hunk for hunk in named if newer.get(hunk.path) is not None] or (changes if named else [])
        return Fix(tuple(hunks), older, newer)

    async def _proven(self, pair: Pair, case: _Case, lock: str) -> _Case | Drop:
        """Return ``case`` or a wider one, all or most of whose failing tests the older dependencies of ``lock`` repair.

        Where the newer release fails with them, too, the environment does, and not the code: then the versions of the
        time before the removal are tried.
        """
        tried = await self._try_old(pair, case, lock)
        if not tried.is_sound and tried.best.share < MIN_SHARE_REPAIRED and (dated := self._dated_old_lock()):
            tried = await self._try_old(pair, case, dated)
        if tried.best.share >= MIN_SHARE_REPAIRED:
            return tried.best
        return Drop("not_by_the_dependency", f"{self.versions}: {tried.told}")

    async def _try_old(self, pair: Pair, case: _Case, lock: str) -> _Tried:
        """Run the failing tests of ``case`` in the environment of ``lock``, and of wider cases if some fail there.

        Places with the names may need others of the older release. These are reverted, too, where the tests pass on the
        newer release.
        """
        _, folder = build_environment(self.context.store, lock)
        old = replace(pair, spec=pair.spec.model_copy(update={"environment": folder, "tree": self._plain_tree()}))
        run = await old.run(case.fix.broken_files, old.bounded_request(case.failing))
        told = f"{case.told(run)}\n{case.first.output_tail}\nwith the older dependencies:\n{run.output_tail}"
        best = case.repaired_in(run)
        if best.share == 1:
            return _Tried(best, True, told)
        whole = case.repaired_in(await old.run({}, old.bounded_request(case.failing)))
        for fix in _wider(case.fix) if whole.share > best.share else ():
            wider = await self._case(pair, fix)
            run = await old.run(fix.broken_files, old.bounded_request(wider.failing))
            best = max(best, wider.repaired_in(run), key=lambda tried: tried.share)
            if best.share == 1:
                break
        return _Tried(best, whole.share >= MIN_SHARE_REPAIRED, told)

    def _old_lock(self, exclude_newer: str = "") -> str:
        """Return a lock with the newest dependencies that have the names; PackageNotFoundError if none fit together."""
        older, newer = (
            runtime_requirements(self.context.store.tree(self.package.sdist(version))) for version in self.versions
        )
        pins = (f"{removal.dependency}<{removal.bad}" for removal in self.removals)
        declared = {*older, *self.removals[0].also_needed, *pins}
        names = {requirement_name(text) for text in declared}
        others = (text for text in newer if requirement_name(text) not in names)
        return self._lock(declared, others, exclude_newer)

    def _dated_old_lock(self) -> str:
        """Return `_old_lock` with all versions from before the removal; empty where dates or versions are missing."""
        times = (self.index.upload_times(removal.dependency).get(removal.bad) for removal in self.removals)
        if not (known := [time for time in times if time]):
            return ""
        try:
            return self._old_lock(min(known).strftime("%Y-%m-%dT%H:%M:%SZ"))
        except PackageNotFoundError:
            return ""

    def _lock(self, declared: Iterable[str], others: Iterable[str] = (), exclude_newer: str = "") -> str:
        """Return a lock of ``declared``, of ``others`` and of the tests' requirements.

        Those beyond ``declared`` for which no versions fit are left out: tests that need them are not usable.

        Raises:
            PackageNotFoundError: no versions fit for ``declared``.
        """
        needed, rest = set(declared), (*others, *self.package.requirements)
        try:
            return resolve_lock(tuple(sorted({*needed, *rest})), exclude_newer)
        except PackageNotFoundError:
            lock = resolve_lock(tuple(sorted(needed)), exclude_newer)
        for required in rest:
            try:
                lock = resolve_lock(tuple(sorted({*needed, required})), exclude_newer)
            except PackageNotFoundError:
                continue
            needed.add(required)
        return lock

    def _plain_tree(self) -> Path:
        return self.context.store.tree(self.package.sdist(self.versions[1]))

    async def _certified(self, pair: Pair, case: _Case, lock: str) -> Task | Drop:
        """Return the certified task of ``case`` with some of its failing tests, or the reason of its drop."""
        fix, first = case.fix, case.first
        own, broken = set(_some_of(case.repaired)), set(case.failing)
        others = [test_id for test_id in pair.suite.num_executed if test_id not in broken][:MAX_PASSING]
        pair = replace(pair, suite=_only(pair.suite, (*own, *others)))
        stable, _ = await pair.stable_tests()
        chosen = tuple(test_id for test_id in stable if test_id in own)
        if not chosen:
            return Drop("unstable", first.output_tail)
        pair.without[fix.numbers] = first
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


def _wider(fix: Fix) -> Iterator[Fix]:
    """Yield ``fix`` with all changes of its files, then with all changes of the release, where these are more."""
    hunks = find_hunks(fix.older, fix.newer)
    paths = {hunk.path for hunk in fix.hunks}
    in_files = tuple(hunk for hunk in hunks if hunk.path in paths)
    if len(in_files) > len(fix.hunks):
        yield replace(fix, hunks=in_files)
    if len(hunks) > len(in_files):
        yield replace(fix, hunks=tuple(hunks))


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
