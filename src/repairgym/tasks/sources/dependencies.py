"""Part of source `breakages`: releases that newer dependencies break (the domain of paper A).

Reads the pinned sdist of an older release. Makes one task if its newest allowed dependencies break its build or its
tests and older versions of some repair it (`version_search`). The environment holds the newest versions, and its
wheelhouse the older ones of the repair, so that the repair can be tried offline. Guarantees: the repair changes only
bounds in lists of requirements; the older versions break no test that passes with the newest.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Environment, Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, choose_visible, sdist_provenance
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.build.wheel_check import BUILD_TEST, DEPENDENCY_TEST, SUITE_FILE, check_text
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.environments import (
    RUNNER_PACKAGES,
    build_environment,
    describe_environment,
    requirement_name,
    resolve_lock,
    with_wheelhouse,
)
from repairgym.tasks.layers.package_index import PackageIndex
from repairgym.tasks.layers.requirement_pins import (
    Place,
    bound_edit,
    build_requirements,
    runtime_requirements,
    setup_requirements,
)
from repairgym.tasks.layers.store import tree_with_files
from repairgym.tasks.sources.base import BuildContext, Drop
from repairgym.tasks.sources.build_checks import WHEEL_TEST, build_request, build_task
from repairgym.tasks.sources.version_search import (
    Bound,
    Failures,
    Files,
    Pin,
    Pins,
    Versions,
    VersionSearch,
    bound_edits,
    bounds_recipe,
)

_PART = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)[^\n]*\n(?:[ \t]+[^\n]*\n?)*", re.MULTILINE)
_LISTED = {"build": build_requirements, "runtime": runtime_requirements}


async def aged_task(package: Package, version: str, context: BuildContext, funnel: Counter[str]) -> Task | Drop:
    """Return the task of an older release with today's dependencies, or the reason of its drop.

    ``funnel`` gets the number of runs that the search took.
    """
    try:
        release = AgedRelease.set_up(package, version, context)
    except PackageNotFoundError as error:
        return Drop("not_lockable", f"{version}: {error}")
    first = await release.run({}, release.newest_lock)
    if first.is_timed_out:
        return Drop("timed_out", f"{version}\n{first.output_tail}")
    broken = _failures(first)
    if not broken:
        return Drop("holds_with_newest", version)
    if not release.has_list("build" if WHEEL_TEST in broken else "runtime"):
        return Drop("no_list_of_requirements", version)
    search = VersionSearch(release, broken, context.config.breakages)
    try:
        repair = await search.find()
        return await release.prove(repair) if repair else Drop("no_versions_repair", f"{version}\n{first.output_tail}")
    finally:
        funnel["search_runs"] += search.num_runs
        release.discard_tried()


def _failures(run: TestRun) -> dict[str, str]:
    failing = [i for i in run.results if "::" in i and run.outcome(i) is not TestOutcome.PASSED]
    return {test_id: run.results[test_id].message for test_id in failing}


@dataclass(frozen=True)
class AgedRelease:
    """A release with the check of its build and its suite, which runs with given versions."""

    package: Package
    version: str
    context: BuildContext
    spec: SandboxSpec
    requirements: tuple[str, ...]
    newest_lock: str
    pinned_files: dict[str, str]
    index: PackageIndex = field(default_factory=PackageIndex)
    versions: dict[str, list[str]] = field(default_factory=dict)
    """Name -> versions on the index, of each requested name."""
    wheels: dict[tuple[str, str], str] = field(default_factory=dict)
    """(name, version) -> its part of a lock, of each resolved version."""
    tried: set[str] = field(default_factory=set)
    """New environments of the search; existing ones belong to other tasks."""
    resolve: Callable[..., str] = resolve_lock
    """Makes locks (see `resolve_lock`)."""

    @classmethod
    def set_up(cls, package: Package, version: str, context: BuildContext) -> Self:
        """Pin the tree and lock its newest allowed dependencies; PackageNotFoundError if none fit together."""
        sdist = package.sdist(version)
        plain = context.store.tree(sdist)
        files = {path: check_text(path) for path in (BUILD_TEST, DEPENDENCY_TEST)}
        files[SUITE_FILE] = _suite_text(package, package.test_files(plain))
        needed = (*build_requirements(plain), *setup_requirements(plain), *runtime_requirements(plain))
        declared = {*package.requirements, *needed}
        requirements = tuple(sorted(declared))
        lock = resolve_lock(requirements)
        _, spec = context.pinned_tree(lock, tree_with_files(context.store, sdist, files))
        return cls(package, version, context, spec, requirements, lock, files)

    @property
    def newest(self) -> dict[str, str]:
        """See `TrialRelease`."""
        return {name: version for name, (version, _) in _parts(self.newest_lock).items()}

    def own_time(self, place: Place) -> dict[Pin, str]:
        """See `TrialRelease`; setuptools counts for both places, because old code imports its ``pkg_resources``."""
        tree = self.spec.tree
        building = {requirement_name(text) for text in (*build_requirements(tree), *setup_requirements(tree))}
        excluded, newest = {*RUNNER_PACKAGES, self.package.name}, self.newest
        older = {
            name: version
            for name, version in self._versions_then.items()
            if name not in excluded and newest.get(name, version) != version
        }
        return {
            Pin(place, name): version
            for name, version in older.items()
            if name == "setuptools" or (name in building) == (place == "build")
        }

    @cached_property
    def _versions_then(self) -> dict[str, str]:
        """Name -> version when the release was uploaded; empty where the index gives no dates or too few wheels."""
        time = self.index.upload_times(self.package.name).get(self.version)
        try:
            lock = self.resolve(self.requirements, exclude_newer=time.strftime("%Y-%m-%dT%H:%M:%SZ")) if time else ""
        except PackageNotFoundError:
            return {}
        return {name: version for name, (version, _) in _parts(lock).items()}

    def known(self) -> dict[Pin, Bound]:
        """See `TrialRelease`."""
        own = (removal for removal in self.package.removals if removal.release == self.version and not removal.adapted)
        return {Pin("runtime", removal.dependency): Bound(removal.good, removal.bad) for removal in own}

    def has_list(self, place: Place) -> bool:
        """Return True if a list of requirements exists for a repair."""
        return bound_edit(self.spec.tree, {}, place, self.package.name, "<1") is not None

    def suspects(self, place: Place, messages: str) -> list[str]:
        """Rank distributions: quoted in a failure, named in it, declared, all others."""
        listed = _LISTED[place](self.spec.tree)
        declared = [requirement_name(text) for text in listed]
        messages = messages.lower().replace("_", "-").replace("pkg-resources", "setuptools")
        excluded = {*RUNNER_PACKAGES, self.package.name}
        names = [name for name in self.newest if name not in excluded]
        return sorted(names, key=lambda name: (f"'{name}" not in messages, name not in messages, name not in declared))

    def released(self, name: str) -> list[str]:
        """See `TrialRelease`."""
        if name not in self.versions:
            self.versions[name] = [version for version in self.index.wheel_versions(name) if _is_release(version)]
        return self.versions[name]

    def older_versions(self, pins: Pins) -> dict[str, str]:
        """See `TrialRelease`."""
        pinned = [f"{pin.name}=={version}" for pin, version in pins.items()]
        if not all(self.has_list(pin.place) for pin in pins):
            return {}
        try:
            parts = _parts(self.resolve((*self.requirements, *pinned)))
        except PackageNotFoundError:
            return {}
        newest = self.newest
        self.wheels.update({(name, version): text for name, (version, text) in parts.items()})
        return {name: version for name, (version, _) in parts.items() if newest.get(name) != version}

    async def failures(self, pins: Pins, older: Versions, among: Failures) -> Failures | None:
        """See `TrialRelease`; only the suite files of ``among`` run."""
        files = bound_edits(self.spec.tree, {pin: f"=={version}" for pin, version in pins.items()})
        if files is None:
            return None
        suite = [path for path in self.package.test_files(self.spec.tree) if any(f"[{path}]" in i for i in among)]
        lock = self._lock_with(older)
        digest = describe_environment(lock).digest
        if not self.context.store.has("environments", digest):
            self.tried.add(digest)
        run = await self.run({**files, SUITE_FILE: _suite_text(self.package, suite)}, lock)
        return None if run.is_timed_out else _failures(run)

    def _lock_with(self, wheelhouse: Versions) -> str:
        """Return the lock of the newest versions with others (from `older_versions`) in the wheelhouse."""
        return with_wheelhouse(self.newest_lock, [self.wheels[pin] for pin in sorted(wheelhouse.items())])

    def discard_tried(self) -> None:
        """Remove the environments of the search after its end, when no warm interpreter runs in them."""
        for digest in self.tried:
            # Another process may have found one meanwhile; then it stays.
            self.context.store.release("environments", digest)

    async def run(self, files: Files, lock: str) -> TestRun:
        """Run the check with ``files`` in the environment of ``lock``, as a trial (see `run_fresh`)."""
        _, folder = build_environment(self.context.store, lock)
        spec = self.spec.model_copy(update={"files": files, "environment": folder})
        return await run_fresh(self.context.backend, spec, self._request(), is_trial=True)

    def _request(self) -> TestRequest:
        return build_request(self.package, self.context, DEPENDENCY_TEST)

    async def prove(self, repair: Mapping[Pin, Bound]) -> Task | Drop:
        """Return the task with the gold patch ``repair``, or the reason of its drop."""
        lock = self._lock_with(self.older_versions({pin: bound.good for pin, bound in repair.items()}))
        gold = bound_edits(self.spec.tree, {pin: f"<{bound.bad}" for pin, bound in repair.items()})
        if gold is None:
            return Drop("no_list_of_requirements", self.version)
        environment, folder = build_environment(self.context.store, lock)
        self.tried.discard(environment.digest)
        evidence = await self._evidence(folder, gold)
        first, repaired = evidence.empty[0], evidence.gold[0]
        if _failures(repaired).keys() - _failures(first).keys():
            return Drop("bound_breaks_others", f"{self.version}\n{repaired.output_tail}")
        failing, passing, _ = evidence.split_tests(i for i in first.results if "::" in i)
        if not failing:
            return Drop("bound_does_not_repair", f"{self.version}\n{repaired.output_tail}")
        try:
            recipe = bounds_recipe({pin: (bound.bad, self.newest[pin.name]) for pin, bound in repair.items()})
            return self._assemble(recipe, repair, gold, environment, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    async def _evidence(self, folder: Path, gold: Files) -> Evidence:
        """Run the whole check without ``gold`` and with it; only once each if that already shows no repair."""
        broken = self.spec.model_copy(update={"environment": folder})
        repaired = broken.model_copy(update={"files": gold})
        empty, fixed = await self._run_times(broken, 1), await self._run_times(repaired, 1)
        if _failures(fixed[0]).keys() < _failures(empty[0]).keys():
            more = self.context.config.num_certificate_runs - 1
            empty += await self._run_times(broken, more)
            fixed += await self._run_times(repaired, more)
        return Evidence(empty, fixed)

    async def _run_times(self, spec: SandboxSpec, num_runs: int) -> list[TestRun]:
        return await run_times(self.context.backend, spec, self._request(), num_runs)

    def _assemble(
        self,
        recipe: str,
        repair: Mapping[Pin, Bound],
        gold: Files,
        environment: Environment,
        evidence: Evidence,
        failing: tuple[str, ...],
        passing: tuple[str, ...],
    ) -> Task:
        package, tree = self.package, self.spec.tree
        broken = {path: (tree / path).read_text("utf-8") if (tree / path).is_file() else None for path in gold}
        bug = Bug(
            project=package.model_copy(update={"plugins": ()}),
            source="breakages",
            provenance=sdist_provenance(package, self.version, "", recipe, tree),
            tree=tree,
            base_tree=tree.name,
            environment=environment,
            broken=broken,
            gold=gold,
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=choose_visible(failing, passing, evidence.empty[0]),
            certificate=evidence.certificate(failing, passing),
            labels={
                "operator": "newer_dependency",
                "error_class": "dependency",
                "difficulty": str(len(repair)),
                "dependency": " ".join(pin.name for pin in repair),
            },
            pinned_files=self.pinned_files,
        )
        return build_task(bug, evidence, recipe, self.context)


def _suite_text(package: Package, test_files: Sequence[str]) -> str:
    return json.dumps({"tests": list(test_files), "folders": [package.root]}, indent=1) + "\n"


def _parts(lock: str) -> dict[str, tuple[str, str]]:
    """Return name -> (version, its part of ``lock``)."""
    return {canonicalize_name(match[1]): (match[2], match[0]) for match in _PART.finditer(lock)}


def _is_release(version: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return not parsed.is_prerelease
