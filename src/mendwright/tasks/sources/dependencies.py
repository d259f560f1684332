"""Part of source `breakages`: releases that newer dependencies break (the domain of paper A).

Reads the pinned sdist of an older release; makes one task when the newest dependencies that it admits break its build
or its tests, and older versions of some of them repair it. The environment holds the newest versions, and in its
wheelhouse the older ones that the repair falls back to, so that the repair can be tried offline. The search goes back
over the series of versions of one suspect after the other (`SERIES_STEPS`), with whatever the resolver puts beside
them, lets go of every pin that is not needed, and bisects over the versions of the others.
Versions and not dates are searched: not every index knows when a file was uploaded. Invariants: nothing but bounds
in a list of requirements is changed by the repair; the older versions break no test that passes beside the newest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mendwright.errors import PackageNotFoundError, TaskError
from mendwright.records import Environment, Task, TestOutcome, TestRun
from mendwright.sandbox.base import SandboxSpec
from mendwright.tasks.assembly import Bug, choose_visible, sdist_provenance
from mendwright.tasks.catalogue import Package
from mendwright.tasks.environments import (
    RUNNER_PACKAGES,
    build_environment,
    describe_environment,
    resolve_lock,
    with_wheelhouse,
)
from mendwright.tasks.index import PackageIndex
from mendwright.tasks.layers import tree_with_files
from mendwright.tasks.requirement_pins import Place, bound_edit, build_requirements, runtime_requirements
from mendwright.tasks.sources.base import Workshop
from mendwright.tasks.sources.build_checks import (
    BUILD_TEST,
    DEPENDENCY_TEST,
    SUITE_FILE,
    build_request,
    build_task,
    check_text,
)
from mendwright.tasks.validation import Evidence, run_fresh, run_times

_PART = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)[^\n]*\n(?:[ \t]+[^\n]*\n?)*", re.MULTILINE)
SERIES_STEPS = (0, 1, 2, 3, 4, 5, 7, 11, 19, 35)
"""How many series before the newest are tried, counted back from the one before it."""
MANY_MAJORS = 10
"""Projects with more major versions than this count a series by its major version alone."""
Versions = Mapping[str, str]
"""Name of a distribution -> version."""
Files = dict[str, str | None]
_RECIPE_BOUND = re.compile(r"(\S+) (<\S+) \(newest ")


async def aged_task(package: Package, version: str, workshop: Workshop) -> Task | str:
    """The task of an older release beside today's dependencies, or why it makes none.

    Raises:
        IndexUnavailableError: no index answers.
        SandboxError: the sandbox could not do its work.
        TaskError: the test patterns match no file of the release.
    """
    try:
        bench = _Bench.set_up(package, version, workshop)
    except PackageNotFoundError:
        return "not_lockable"
    first = await bench.run({}, bench.newest_lock)
    if first.is_timed_out:
        return "timed_out"
    broken = frozenset(i for i in first.results if first.outcome(i) is not TestOutcome.PASSED and "::" in i)
    if not broken:
        return "holds_with_newest"
    search = _Search(bench, first, broken, PackageIndex())
    try:
        repair = await search.find()
        if not repair:
            return "no_versions_repair"
        return await bench.prove(repair, search.place, tuple(first.results))
    finally:
        bench.discard_tried()


@dataclass(frozen=True)
class Bound:
    """An older version that works, and the first newer one that does not."""

    good: str
    bad: str


@dataclass(frozen=True)
class _Bench:
    """A release with the check of its build and its suite, and what it takes to run it with given versions."""

    package: Package
    version: str
    workshop: Workshop
    spec: SandboxSpec
    requirements: tuple[str, ...]
    newest_lock: str
    pinned_files: dict[str, str]
    wheels: dict[tuple[str, str], str] = field(default_factory=dict)
    """(name, version) -> its part of a lock, of each version that was resolved."""
    tried: set[str] = field(default_factory=set)
    """Environments that only the search needs."""

    @classmethod
    def set_up(cls, package: Package, version: str, workshop: Workshop) -> _Bench:
        """Pin the tree and lock the newest dependencies that it admits.

        Raises:
            IndexUnavailableError: no index answers.
            PackageNotFoundError: no versions fit together.
            TaskError: the test patterns match nothing.
        """
        sdist = package.sdist(version)
        plain = workshop.store.tree(sdist)
        suite = {"tests": package.test_files(plain), "folders": [package.root]}
        files = {path: check_text(path) for path in (BUILD_TEST, DEPENDENCY_TEST)}
        files[SUITE_FILE] = json.dumps(suite, indent=1) + "\n"
        declared = {*package.requirements, *build_requirements(plain), *runtime_requirements(plain)}
        requirements = tuple(sorted(declared))
        lock = resolve_lock(requirements)
        _, spec = workshop.pinned_tree(lock, tree_with_files(workshop.store, sdist, files))
        return cls(package, version, workshop, spec, requirements, lock, files)

    @property
    def locked(self) -> dict[str, str]:
        """The newest versions."""
        return {name: version for name, (version, _) in _parts(self.newest_lock).items()}

    def older_versions(self, pins: Versions) -> dict[str, str]:
        """What is older than the newest when ``pins`` hold: the pins and what goes together with them; none can.

        Raises:
            IndexUnavailableError: no index answers.
        """
        try:
            found = _parts(self._resolve(pins))
        except PackageNotFoundError:
            return {}
        newest = self.locked
        self.wheels.update({(name, version): text for name, (version, text) in found.items()})
        return {name: version for name, (version, _) in found.items() if newest.get(name) != version}

    def _resolve(self, pins: Versions) -> str:
        return resolve_lock((*self.requirements, *(f"{name}=={version}" for name, version in pins.items())))

    def lock_with(self, wheelhouse: Versions) -> str:
        """The newest versions, with others (that `older_versions` told) in the wheelhouse."""
        return with_wheelhouse(self.newest_lock, [self.wheels[pin] for pin in sorted(wheelhouse.items())])

    def discard_tried(self) -> None:
        """Remove the environments of the search. Not before its end: warm interpreters run in them."""
        for digest in self.tried:
            self.workshop.store.discard("environments", digest)

    async def run(self, files: Files, lock: str) -> TestRun:
        """The whole check with ``files`` in the environment of ``lock``."""
        _, folder = build_environment(self.workshop.store, lock)
        spec = self.spec.model_copy(update={"files": files, "environment": folder})
        return await run_fresh(self.workshop.backend, spec, build_request(self.package, self.workshop, DEPENDENCY_TEST))

    async def prove(self, repair: Mapping[str, Bound], place: Place, test_ids: Sequence[str]) -> Task | str:
        """The task whose gold patch is ``repair``, or why it makes none."""
        lock = self.lock_with(self.older_versions({name: bound.good for name, bound in repair.items()}))
        gold = bound_edits(self.spec.tree, place, {name: f"<{bound.bad}" for name, bound in repair.items()})
        if gold is None:
            return "no_list_of_requirements"
        environment, folder = build_environment(self.workshop.store, lock)
        self.tried.discard(environment.digest)
        request = build_request(self.package, self.workshop, DEPENDENCY_TEST)
        backend, num_runs = self.workshop.backend, self.workshop.config.num_certificate_runs
        spec = self.spec.model_copy(update={"environment": folder})
        empty_runs = await run_times(backend, spec, request, num_runs)
        gold_runs = await run_times(backend, spec.model_copy(update={"files": gold}), request, num_runs)
        evidence = Evidence(empty_runs, gold_runs)
        failing, passing, _ = evidence.split_tests(i for i in test_ids if "::" in i)
        if not failing:
            return "bound_does_not_repair"
        try:
            recipe = bounds_recipe(place, {name: (b.bad, self.locked[name]) for name, b in repair.items()})
            return self._assemble(recipe, repair, gold, environment, evidence, failing, passing)
        except TaskError:
            return "test_not_cuttable"

    def _assemble(
        self,
        recipe: str,
        repair: Mapping[str, Bound],
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
            location=None,
            labels={
                "operator": "newer_dependency",
                "error_class": "dependency",
                "difficulty": str(len(repair)),
                "dependency": " ".join(repair),
            },
            pinned_files=self.pinned_files,
        )
        return build_task(bug, evidence, recipe, self.workshop)


@dataclass(frozen=True)
class _Search:
    """Looks for the versions that repair a release."""

    bench: _Bench
    first: TestRun
    broken: frozenset[str]
    index: PackageIndex

    @property
    def place(self) -> Place:
        """Which list of requirements has to change: that of the build when the wheel cannot be made."""
        return "build" if any(test_id.endswith("::test_a_wheel_can_be_built") for test_id in self.broken) else "runtime"

    async def find(self) -> dict[str, Bound]:
        """Bounds that repair; empty when no versions do."""
        for suspect in self._suspects():
            for version in self._series(suspect):
                older = self.bench.older_versions({suspect: version})
                # The suspect alone, while everything else follows; then all that the resolver made older, too.
                for pins in ({suspect: version}, older):
                    repaired = await self._repaired(pins, older)
                    if repaired:
                        return await self._bisect_all(await self._fewest(pins, older, repaired), repaired)
                    if len(older) < 2:
                        break
        return {}

    def _suspects(self) -> list[str]:
        """Requirements: first those that a failure quotes, then those that it names, then those that are declared."""
        listed = {"build": build_requirements, "runtime": runtime_requirements}[self.place](self.bench.spec.tree)
        declared = [canonicalize_name(re.split(r"[^\w.-]", text.strip())[0]) for text in listed]
        told = " ".join(result.message for result in self.first.results.values()).lower().replace("_", "-")
        told = told.replace("pkg-resources", "setuptools")
        kept = {*RUNNER_PACKAGES, self.bench.package.name}
        names = [name for name in self.bench.locked if name not in kept]
        names.sort(key=lambda name: (f"'{name}" not in told, name not in told, name not in declared))
        return names[: self.bench.workshop.config.breakages.num_suspects]

    def _older(self, name: str) -> list[str]:
        """Versions before the newest, newest first."""
        newest = Version(self.bench.locked[name])
        return [v for v in self.index.wheel_versions(name) if _is_release(v) and Version(v) < newest]

    def _series(self, name: str) -> list[str]:
        """The last version of each series (major and minor version) at `SERIES_STEPS` before the newest."""
        older = self._older(name)
        depth = 1 if len({Version(version).major for version in older}) > MANY_MAJORS else 2
        tops: dict[tuple[int, ...], str] = {}
        for version in older:
            tops.setdefault(Version(version).release[:depth], version)
        tops.pop(Version(self.bench.locked[name]).release[:depth], None)
        found = list(tops.values())
        steps = SERIES_STEPS[: self.bench.workshop.config.breakages.num_older_series]
        return [found[step] for step in steps if step < len(found)]

    async def _repaired(self, pins: Versions, wheelhouse: Versions) -> frozenset[str]:
        """Broken tests that pass with exactly these versions; none when another test breaks."""
        files = bound_edits(self.bench.spec.tree, self.place, {name: f"=={version}" for name, version in pins.items()})
        if files is None or not wheelhouse:
            return frozenset()
        lock = self.bench.lock_with(wheelhouse)
        self.bench.tried.add(describe_environment(lock).digest)
        run = await self.bench.run(files, lock)
        failing = {i for i in self.first.results if run.outcome(i) is not TestOutcome.PASSED and "::" in i}
        return frozenset() if failing - self.broken else self.broken - failing

    async def _fewest(self, pins: Versions, wheelhouse: Versions, repaired: frozenset[str]) -> dict[str, str]:
        """The pins without which fewer tests are repaired."""
        kept = dict(pins)
        for name in reversed(list(pins)):
            others = {other: version for other, version in kept.items() if other != name}
            if others and await self._repaired(others, wheelhouse) >= repaired:
                kept = others
        return kept

    async def _bisect_all(self, pins: Versions, repaired: frozenset[str]) -> dict[str, Bound]:
        """The newest version of each pin that still repairs, one after the other, and what comes after it."""
        good = dict(pins)
        bounds: dict[str, Bound] = {}
        for name in pins:
            between = [v for v in self._older(name) if Version(v) > Version(good[name])]
            newer = [*reversed(between), self.bench.locked[name]]
            while len(newer) > 1:
                middle = (len(newer) - 1) // 2
                trial = {**good, name: newer[middle]}
                if await self._repaired(trial, self.bench.older_versions(trial)) >= repaired:
                    good, newer = trial, newer[middle + 1 :]
                else:
                    newer = newer[: middle + 1]
            bounds[name] = Bound(good[name], newer[0])
        return bounds


def bound_edits(tree: Path, place: Place, bounds: Versions) -> Files | None:
    """Settings files of ``tree`` with ``bounds``; None when there is no place for one."""
    files: Files = {}
    for name, bound in bounds.items():
        edit = bound_edit(tree, files, place, name, bound)
        if edit is None:
            return None
        files[edit[0]] = edit[1]
    return files


def bounds_recipe(place: Place, bounds: Mapping[str, tuple[str, str]]) -> str:
    """The repair in words; ``bounds``: name -> (first version that breaks, newest version)."""
    told = "; ".join(f"{name} <{bad} (newest {newest})" for name, (bad, newest) in bounds.items())
    return f"{place} requirements: {told}"


def read_bounds(recipe: str) -> tuple[Place, dict[str, str]]:
    """What `bounds_recipe` wrote: the list of requirements, and name -> bound."""
    place: Place = "build" if recipe.startswith("build ") else "runtime"
    return place, dict(_RECIPE_BOUND.findall(recipe.partition(": ")[2]))


def _parts(lock: str) -> dict[str, tuple[str, str]]:
    """Name -> (version, its part of ``lock``)."""
    return {canonicalize_name(match[1]): (match[2], match[0]) for match in _PART.finditer(lock)}


def _is_release(version: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return not parsed.is_prerelease
