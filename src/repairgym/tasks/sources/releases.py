"""Task source `releases`: real bugs, from pairs of releases split by hunk ablation.

Reads two pinned sdists, X and X+1. Makes one task per separable fix: reverted from X+1 it is a bug, with its changelog
entry as issue text. The tests of X+1 define the fixes: they pass on X+1 and fail on the sources of X. Only test files
that changed are run for each hunk; the others once per fix, which may break none of their tests. The repository's
own test configuration is never read (`sandbox/guest/runners/pytest_runner.py`), so it cannot drift between releases.

Each source hunk is reverted alone; hunks that break the same fixed tests belong together. A hunk that also breaks other
tests is incomplete: either the rest of its fix needs it (an attribute that another hunk reads), or it needs hunks
without a test (a rule that replaced entries deleted elsewhere). It joins a fix, or hunks with a shared changed name, or
other incomplete hunks with a common name (a new parameter and the call that passes it), if together they break no other
test. Guarantees: the fixes of one pair share no hunk; the rest of X+1 stays as released; the release itself fixed every
failing test of a task.
"""

import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property

from repairgym.records import Task
from repairgym.tasks.build.assembly import sdist_provenance
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.issues.describing import Report, assigned_entries, describe
from repairgym.tasks.issues.proving import prove_task
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult, of_kinds
from repairgym.tasks.sources.changed_tests import OtherTests, changed_test_files
from repairgym.tasks.sources.fixes import Fix, Hunk, changes_code, find_hunks
from repairgym.tasks.sources.pairs import Origin, Pair, texts_of_both


async def make_releases(package: Package, context: BuildContext) -> SourceResult:
    """Make `releases` tasks (see `TaskSource`)."""
    result = SourceResult()
    for base, gold in package.releases:
        await collect(await release_pair(package, context, base, gold), result)
    return result


async def release_pair(package: Package, context: BuildContext, base_version: str, version: str) -> Pair:
    """Return the pair of two releases, ready to run; TaskError if the newer one has no usable test."""
    older_tree = context.store.tree(package.sdist(base_version))
    environment, spec = context.pinned(package, version)
    origin = Origin(
        project=package,
        source="releases",
        provenance=sdist_provenance(package, version, base_version, "", spec.tree),
        base_tree=tree_digest(package.sdist(version)),
        environment=environment,
        config=context.config.releases,
    )
    test_files = changed_test_files(package, older_tree, spec.tree)
    return await Pair.set_up(origin, context, spec, test_files, *texts_of_both(package, older_tree, spec.tree))


async def collect(pair: Pair, result: SourceResult) -> None:
    """Add the tasks and counts of ``pair`` to ``result``."""
    config, version = pair.context.config.releases, pair.origin.provenance.version
    result.funnel["pairs"] += 1
    stable, unstable, fixed = await pair.sort_tests()
    result.funnel["unstable_tests"] += len(unstable)
    result.funnel["fixed_tests"] += len(fixed)
    if not fixed:
        base = pair.origin.provenance.base_version
        told = f"no test of {version} that passes in every run fails on the sources of {base}"
        result.add(Drop("pairs_without_fixed_tests", told))
        return

    num_hunks = len(find_hunks(pair.older, pair.newer))
    if num_hunks > config.max_hunks:
        told = f"{version} has {num_hunks} changed places of its sources; releases.max_hunks bounds them"
        result.add(Drop("pairs_with_too_many_hunks", told))
        return
    fixes = await Ablation(pair, stable, fixed, result.funnel, _other_tests(pair)).split()
    made = [await pair.make_task(fix, stable, fixed) for fix in fixes[: config.num_per_pair]]
    tasks = [outcome for outcome in made if isinstance(outcome, Task)]
    entries = dict(zip((task.id for task in tasks), assigned_entries(tasks, pair.spec.tree), strict=True))
    for outcome in made:
        if isinstance(outcome, Task):
            proofs = await prove_task(outcome, pair.spec.tree, pair.context.store, pair.context.backend)
            report = Report(entries[outcome.id], "changelog", pair.failures[outcome.id], proofs)
            outcome = of_kinds(describe(outcome, pair.spec.tree, report), config.kinds)
        result.add(outcome)


def _other_tests(pair: Pair) -> OtherTests:
    """Return the test files of the newer release that ``pair`` does not run."""
    own = set(pair.test_files)
    files = pair.origin.project.test_files(pair.spec.tree)
    return OtherTests(pair, tuple(path for path in files if path not in own))


# --- hunk ablation -------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_]\w+")
NUM_SUSPECTS = 2
"""Tests that each failed check of a group adds to the suspects."""
_COMMON_NAMES = {*keyword.kwlist, "self", "cls"}
"""Names that relate no hunks."""


@dataclass(frozen=True)
class Ablation:
    """One pair under ablation."""

    pair: Pair
    stable: tuple[str, ...]
    fixed: tuple[str, ...]
    funnel: Counter[str]
    other_tests: OtherTests
    suspects: list[str] = field(default_factory=list)
    """Tests that the release did not fix and that broke without some hunk."""

    @cached_property
    def fixed_set(self) -> frozenset[str]:
        """The fixed tests."""
        return frozenset(self.fixed)

    async def split(self) -> list[Fix]:
        """Return the fixes."""
        hunks = find_hunks(self.pair.older, self.pair.newer)
        self.funnel["hunks"] += len(hunks)
        groups, untested = await self._group_by_tests(hunks)
        closed, halves = await self._separate(groups)
        await self._join(closed, halves, untested)
        self.funnel["hunks_untested"] += len(untested)
        self.funnel["fixes"] += len(closed)
        return [self._fix(group) for group in closed]

    def _fix(self, hunks: Iterable[Hunk]) -> Fix:
        ordered = tuple(sorted(hunks, key=lambda hunk: hunk.number))
        return Fix(ordered, self.pair.older, self.pair.newer)

    async def _group_by_tests(self, hunks: list[Hunk]) -> tuple[list[list[Hunk]], list[Hunk]]:
        """Group hunks by the fixed tests that break without them; return the hunks without such a test as well."""
        coding = [hunk for hunk in hunks if changes_code(self.pair.newer, self.pair.older, hunk)]
        self.funnel["hunks_without_code"] += len(hunks) - len(coding)
        request = self.pair.bounded_request(self.fixed)

        async def ablate(hunk: Hunk) -> tuple[str, ...]:
            return self.pair.broken_of(await self.pair.run(self._fix([hunk]).broken_files, request), self.fixed)

        by_broken: dict[tuple[str, ...], list[Hunk]] = defaultdict(list)
        async with aclosing(ordered_map(ablate, coding, self.pair.context.config.num_concurrent)) as ablated:
            async for hunk, broken in ablated:
                by_broken[broken].append(hunk)
        untested = by_broken.pop((), [])
        return list(by_broken.values()), untested

    async def _is_closed(self, hunks: list[Hunk]) -> bool:
        """Return True when reverting ``hunks`` breaks only tests that the release fixed, and at least one.

        `suspects` run first: most hunks that belong to no fix break the same few tests, and need no run of the suite.
        Test files that did not change run last, for hunks that pass the rest.
        """
        fix = self._fix(hunks)
        if self.suspects and not self.pair.has_run_without(fix):
            first = await self.pair.run(fix.broken_files, self.pair.bounded_request(tuple(self.suspects)))
            if first.is_timed_out or self.pair.broken_of(first, tuple(self.suspects)):
                return False
        run = await self.pair.run_without(fix, self.stable)
        broken = self.pair.broken_of(run, self.stable)
        others = [test_id for test_id in broken if test_id not in self.fixed_set]
        if broken and not others and not run.is_timed_out:
            others = list(await self.other_tests.broken_by(fix))
        self.suspects.extend(others[:NUM_SUSPECTS] if not set(others) & set(self.suspects) else ())
        return not run.is_timed_out and bool(broken) and not others

    async def _separate(self, groups: list[list[Hunk]]) -> tuple[list[list[Hunk]], list[Hunk]]:
        """Return the groups that break fixed tests only, and the incomplete hunks."""
        closed: list[list[Hunk]] = []
        halves: list[Hunk] = []
        for group in groups:
            if await self._is_closed(group):
                closed.append(group)
                continue
            alone = {hunk: len(group) > 1 and await self._is_closed([hunk]) for hunk in group}
            rest = [hunk for hunk in group if alone[hunk]]
            if rest and await self._is_closed(rest):
                closed.append(rest)
                halves += [hunk for hunk in group if not alone[hunk]]
            else:
                halves += group
        return closed, halves

    async def _join(self, closed: list[list[Hunk]], halves: list[Hunk], untested: list[Hunk]) -> None:
        """Add each incomplete hunk to a fix, or make a fix with other hunks; ``closed`` and ``untested`` change."""
        unmatched: list[Hunk] = []
        for half in halves:
            if await self._attach(closed, half):
                self.funnel["hunks_attached"] += 1
            elif not await self._close(closed, [half], untested):
                unmatched.append(half)
        for group in self._related(unmatched):
            if len(group) > 1 and await self._is_closed(group):
                closed.append(group)
            elif len(group) == 1 or not await self._close(closed, group, untested):
                self.funnel["hunks_entangled"] += len(group)

    async def _close(self, closed: list[list[Hunk]], group: list[Hunk], untested: list[Hunk]) -> bool:
        """Make a fix of ``group`` and the untested hunks of its files with a common changed name."""
        paths = {hunk.path for hunk in group}
        names = set().union(*map(self._changed_names, group))
        others = [hunk for hunk in untested if hunk.path in paths and names & self._changed_names(hunk)]
        if not others or not await self._is_closed([*group, *others]):
            return False
        closed.append([*group, *others])
        untested[:] = [hunk for hunk in untested if hunk not in others]
        self.funnel["hunks_attached"] += len(others)
        return True

    def _related(self, hunks: list[Hunk]) -> list[list[Hunk]]:
        """Group ``hunks`` that mention each other's changed names or functions."""
        own, mentioned = ({hunk: names(hunk) for hunk in hunks} for names in (self._own_names, self._all_names))
        groups: list[list[Hunk]] = []
        for hunk in hunks:
            near = [
                g for g in groups if any(own[hunk] & mentioned[other] or own[other] & mentioned[hunk] for other in g)
            ]
            groups = [group for group in groups if group not in near]
            groups.append([*(member for group in near for member in group), hunk])
        return groups

    def _own_names(self, hunk: Hunk) -> set[str]:
        functions = {span.qualified_name.rpartition(".")[2] for _, span in self._fix([hunk]).touched_functions()}
        return (self._changed_names(hunk) | functions) - _COMMON_NAMES

    def _all_names(self, hunk: Hunk) -> set[str]:
        return self._new_names(hunk) | set(_NAME.findall("".join(hunk.old_lines)))

    async def _attach(self, closed: list[list[Hunk]], half: Hunk) -> bool:
        """Add ``half`` to the first fix that stays closed with it, most shared names first."""
        names = self._added_names(half)
        shared = [len(names & set().union(*map(self._added_names, group))) for group in closed]
        for number in sorted((n for n, count in enumerate(shared) if count), key=lambda n: -shared[n]):
            if await self._is_closed([*closed[number], half]):
                closed[number].append(half)
                return True
        return False

    def _added_names(self, hunk: Hunk) -> set[str]:
        """Return names of ``hunk`` that the replaced lines lack."""
        return self._new_names(hunk) - set(_NAME.findall("".join(hunk.old_lines)))

    def _new_names(self, hunk: Hunk) -> set[str]:
        return set(_NAME.findall(self._fix([hunk]).new_text))

    def _changed_names(self, hunk: Hunk) -> set[str]:
        """Return names on only one side of ``hunk``."""
        return self._new_names(hunk) ^ set(_NAME.findall("".join(hunk.old_lines)))
