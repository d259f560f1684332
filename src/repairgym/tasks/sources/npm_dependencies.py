"""Part of source `breakages` for npm: releases that a newer version of one dependency breaks (the domain of paper A).

Reads the archive of an older release. Runs its suite with the oldest versions that its ranges allow, which are those of
its author's time, then with the newest that they allow, then with the newest of all. Where tests of the first run fail,
one dependency after the other is replaced by its new version alone; bisection finds the first version that breaks.
Makes one task, whose environment holds both versions, so that the repair, a range in ``package.json``, can be tried
offline. Guarantees: all other packages keep their older versions, so that the one dependency is the cause.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from repairgym.errors import IndexUnavailableError, PackageNotFoundError, TaskError
from repairgym.records import Task, TestOutcome, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.adding.npm_project import FRAMEWORKS, NodeFolder, read_folder
from repairgym.tasks.adding.trial import MIN_SHARE_PASSED
from repairgym.tasks.build.assembly import read_text
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.javascript.breaks import declared_range, range_recipe, with_range
from repairgym.tasks.javascript.package_check import SETTINGS, with_reader_of_ranges
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.environments import build_environment, describe_environment
from repairgym.tasks.layers.npm_locks import locked_names, locked_version, resolve_npm_lock
from repairgym.tasks.layers.npm_registry import NpmRegistry
from repairgym.tasks.mutation.settings_operators import SettingsEdit
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.npm_builds import NpmRun

NODE_VERSION = "20.19.6"
"""Node of the environments."""
_OLDER = "repairgym-older"
"""Name under which the environment holds the older version of the dependency."""
_FIRST = re.compile(r"[\^~]?(?:>=)? ?v?(\d+)(?:\.(\d+))?(?:\.(\d+))?$")
_TEST_S = 10.0
_ANY = ("", "*", "x", "latest")


async def aged_npm_task(
    package: NpmPackage, version: str, context: BuildContext, funnel: Counter[str], node_version: str = NODE_VERSION
) -> Task | Drop:
    """Return the task of a release that a newer dependency breaks, or the reason of its drop.

    ``funnel`` gets the number of runs of its suite. An empty ``node_version`` stands for the machine's node.
    """
    package = package.only(version)
    try:
        release = read_folder(context.store.tree(package.sdist()), package.name)
    except TaskError as error:
        return Drop("no_tests", str(error))
    search = _Search(package, release, context, node_version)
    try:
        return await search.task()
    except PackageNotFoundError as error:
        return Drop("not_lockable", f"{version}: {error}")
    finally:
        funnel["search_runs"] += search.num_runs
        search.discard_tried()


class _Culprit(NamedTuple):
    """A dependency whose newer version breaks tests."""

    name: str
    good: str
    bad: str
    """The first version after ``good``, which breaks."""
    newest: str
    is_declared: bool
    """The release's own range allows ``newest``."""


@dataclass
class _Search:
    """Runs of the suite of one release with given versions."""

    package: NpmPackage
    release: NodeFolder
    context: BuildContext
    node_version: str
    registry: NpmRegistry = field(default_factory=NpmRegistry)
    num_runs: int = 0
    tried: set[str] = field(default_factory=set)
    """New environments of the search; existing ones belong to other tasks."""
    needed: dict[str, str] = field(default_factory=dict)
    framework: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    """Lock with the older versions."""
    passing: frozenset[str] = frozenset()
    """Tests that pass with them."""

    async def task(self) -> Task | Drop:
        """Return the task, or the reason of its drop."""
        if drop := await self._set_base():
            return drop
        told = "holds_with_newest"
        for is_declared in (True, False):
            newest = self._newest(is_declared)
            run = await self._run(newest) if newest else None
            if run is None or not self.passing - _passed(run):
                continue
            messages = " ".join(result.message for result in run.results.values()) + run.output_tail
            if culprit := await self._culprit(newest, is_declared, messages):
                return await self._prove(culprit)
            told = "no_single_dependency"
        return Drop(told, f"{self.package.name} {self.package.version}")

    async def _set_base(self) -> Drop | None:
        """Choose framework and older versions with which most tests pass; return the reason of a drop for none."""
        frameworks = [self.release.tools(version) for version in FRAMEWORKS[self.release.runner]]
        names = {name for framework in frameworks for name in framework}
        self.needed = {name: wanted for name, wanted in self.release.needed.items() if name not in names}
        oldest = {name: _oldest(wanted) for name, wanted in self.needed.items()}
        bases = [oldest, self.needed] if oldest != self.needed else [oldest]
        for requirements, framework in itertools.product(bases, frameworks):
            lock = self._resolved({**requirements, **framework}, kept_lock="")
            if not lock or self.package.name in locked_names(lock):
                continue
            run = await self._run(lock)
            if len(passing := _passed(run)) > len(self.passing):
                self.framework, self.base, self.passing = framework, lock, passing
            if self.passing and len(self.passing) >= MIN_SHARE_PASSED * len(run.results):
                break
        return None if self.passing else Drop("fails_with_oldest", self.package.version)

    def _newest(self, is_declared: bool) -> str:
        """Return the lock with the newest versions; empty where none fit together."""
        needed = self.needed if is_declared else dict.fromkeys(self.needed, "latest")
        return self._resolved({**needed, **self.framework}, kept_lock="")

    def _resolved(self, requirements: Mapping[str, str], kept_lock: str) -> str:
        try:
            return resolve_npm_lock(requirements, self.node_version, kept_lock=kept_lock)
        except (PackageNotFoundError, IndexUnavailableError):
            return ""  # npm has no word of its own for a range that it cannot read

    def _with(self, name: str, version: str) -> str:
        """Return the lock of the older versions with ``version`` of one dependency."""
        return self._resolved({**self.needed, **self.framework, name: version}, kept_lock=self.base)

    async def _run(self, lock: str) -> TestRun:
        self.num_runs += 1
        store, config = self.context.store, self.context.config
        digest = describe_environment(lock).digest
        if not store.has("environments", digest):
            self.tried.add(digest)
        folder = build_environment(store, lock)[1]
        request = self.context.request(self.package, self.release.tests, config.suite_timeout_s)
        runner = request.runner.model_copy(update={"type": self.release.runner})
        request = request.model_copy(update={"runner": runner, "test_timeout_s": _TEST_S})
        spec = SandboxSpec(environment=folder, tree=self.release.tree, limits=config.sandbox.limits)
        return await run_fresh(self.context.backend, spec, request, is_trial=True)

    def discard_tried(self) -> None:
        """Remove the environments of the search after its end."""
        for digest in self.tried:
            self.context.store.release("environments", digest)

    async def _broken(self, lock: str) -> frozenset[str]:
        """Return the tests that ``lock`` breaks."""
        return self.passing - _passed(await self._run(lock))

    async def _culprit(self, newest: str, is_declared: bool, messages: str) -> _Culprit | None:
        """Return the first dependency whose new version alone breaks tests, those named in failures before others."""
        for name in sorted(self.needed, key=lambda name: name not in messages):
            old, new = locked_version(self.base, name), locked_version(newest, name)
            if not old or not new or old == new or self._is_spent:
                continue
            lock = self._with(name, new)
            if lock and await self._broken(lock):
                good, bad = await self._bisect(name, old, new)
                return _Culprit(name, good, bad, new, is_declared)
        return None

    @property
    def _is_spent(self) -> bool:
        return self.num_runs >= self.context.config.breakages.num_runs

    async def _bisect(self, name: str, good: str, bad: str) -> tuple[str, str]:
        """Return the last version that works and the first that does not, between ``good`` and ``bad``."""
        versions = [sdist.version for sdist in reversed(self.registry.releases(name))]
        if good not in versions or bad not in versions:
            return good, bad
        between = versions[versions.index(good) + 1 : versions.index(bad)]
        while between and not self._is_spent:
            middle = len(between) // 2
            lock = self._with(name, between[middle])
            if lock and await self._broken(lock):
                bad, between = between[middle], between[:middle]
            else:
                good, between = (between[middle] if lock else good), between[middle + 1 :]
        return good, bad

    async def _prove(self, culprit: _Culprit) -> Task | Drop:
        """Return the certified task of ``culprit``, or the reason of its drop."""
        name, text = culprit.name, read_text(self.release.tree / SETTINGS)
        declared = declared_range(text, name)
        capped = f"<{culprit.bad}" if declared in _ANY else f"{declared} <{culprit.bad}"
        ranges = (declared, culprit.good if "||" in declared else capped)
        broken, gold = ranges if culprit.is_declared else (f"^{culprit.newest}", declared)
        requirements = {**self.needed, **self.framework, name: culprit.newest, _OLDER: f"npm:{name}@{culprit.good}"}
        lock = self._resolved(requirements, kept_lock=self.base)
        if not lock:
            return Drop("not_lockable", f"{name} {culprit}")
        labels = {"dependency": name, "good": culprit.good, "bad": culprit.bad, "newest": culprit.newest}
        labels["range"] = "declared" if culprit.is_declared else "lifted"
        package = self.package.model_copy(update={"runner": self.release.runner})
        repaired = {SETTINGS: with_range(text, name, gold)}
        run = await _AgedRun.of(
            package, self.release.tests, with_reader_of_ranges(lock), self.context, repaired, labels
        )
        if isinstance(run, Drop):
            return run
        if drop := await run.check_gold():
            return drop
        recipe = range_recipe(name, broken, gold).removeprefix(f"{SETTINGS} ")
        return await run.try_edit(
            SettingsEdit("newer_dependency", "dependency", SETTINGS, recipe, with_range(text, name, broken))
        )


@dataclass(frozen=True)
class _AgedRun(NpmRun):
    """The check of an older release with one range after the other."""

    @property
    def report(self) -> str:
        """Words of the issue before the first failure."""
        labels = self.labels
        return f"does not work with {labels['dependency']} {labels['newest']}, while it worked with {labels['good']}"


def _passed(run: TestRun) -> frozenset[str]:
    return frozenset(test_id for test_id in run.results if run.outcome(test_id) is TestOutcome.PASSED)


def _oldest(wanted: str) -> str:
    """Return the oldest version that a range allows, where the range names one; else the range."""
    named = _FIRST.match(wanted)
    return ".".join((named[1], named[2] or "0", named[3] or "0")) if named else wanted
