"""Releases of a package that use names which newer versions of its dependencies lack, found without running anything.

Reads a package index, sdists and wheels as text. Makes `Removal` records. A few releases over the life of a package
are read first. Between two that lack the same names no other is read; where they differ, the releases between them are
halved until two adjacent ones are left. Guarantees:
the newest version with a name and the first one without it are adjacent among the versions that were looked at; nothing
that the code guards counts; each release is read once.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.tasks.adding.layout import Layout, find_layout
from repairgym.tasks.adding.test_requirements import distribution_of
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import Removal, matching_files
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.requirement_pins import runtime_requirements
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.layers.wheel_names import Use, WheelNames, read_uses

MAX_READS = 20
"""Most releases of a package that are read."""
NUM_GAPS = 4
"""Parts of a package's releases whose ends are read first: a name that came and went shows in none further apart."""
MAX_DISTRIBUTIONS = 40
"""Most distributions of a package's requirements, and of what these require."""
MAX_TRIES = 6
"""Versions of a dependency that are tried for one that still has a name, from the release's own time on."""


class WheelIndex(Protocol):
    """A server of wheels with dates."""

    def wheel_versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of ``name`` with a wheel for this Python, newest first; none if it is unknown."""
        ...

    def fetch_wheel(self, name: str, version: str, folder: Path) -> Path:
        """Return the file of a wheel, in ``folder`` or elsewhere; PackageNotFoundError if there is none."""
        ...

    def upload_times(self, name: str) -> dict[str, datetime]:
        """Return version -> upload time of its sdist."""
        ...


class Lacking(NamedTuple):
    """A used name that today's version of a distribution lacks."""

    distribution: str
    use: Use


@dataclass(frozen=True)
class ReadRelease:
    """A release as text."""

    sdist: Sdist
    tree: Path
    layout: Layout
    lacking: frozenset[Lacking]
    is_too_old: bool
    """This Python cannot read it, or lacks a module or name that it needs."""

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """(distribution, name with its module) of each use."""
        return frozenset((item.distribution, item.use.dotted) for item in self.lacking)


@dataclass
class Wheels:
    """Wheels of an index; each is read once."""

    index: WheelIndex
    folder: Path
    """Place for the files."""
    names: dict[tuple[str, str], WheelNames | None] = field(default_factory=dict)
    versions: dict[str, list[str]] = field(default_factory=dict)

    def released(self, name: str) -> list[str]:
        """Return the final versions of ``name`` with a wheel, newest first."""
        if name not in self.versions:
            self.versions[name] = [version for version in self.index.wheel_versions(name) if _is_final(version)]
        return self.versions[name]

    def newest(self, requirement: Requirement) -> str:
        """Return the newest version that ``requirement`` admits; empty for none."""
        return next((v for v in self.released(canonicalize_name(requirement.name)) if v in requirement.specifier), "")

    def read(self, name: str, version: str) -> WheelNames | None:
        """Return the names of a wheel; None if it cannot be read."""
        if (name, version) not in self.names:
            try:
                self.names[name, version] = WheelNames(self.index.fetch_wheel(name, version, self.folder))
            except (PackageNotFoundError, OSError, ValueError):
                self.names[name, version] = None
        return self.names[name, version]

    def admitted(self, requirements: Sequence[str], tops: Iterable[str]) -> dict[str, str]:
        """Return distribution -> newest admitted version: ``requirements``, and what brings the modules ``tops``."""
        chosen: dict[str, str] = {}
        queue, wanted = list(_usable(requirements)), set(tops)
        num_declared = len(queue)
        while queue and len(chosen) < MAX_DISTRIBUTIONS and (wanted or num_declared > 0):
            requirement, num_declared = queue.pop(0), num_declared - 1
            name = canonicalize_name(requirement.name)
            version = self.newest(requirement) if name not in chosen else ""
            if version:
                chosen[name] = version
                wheel = self.read(name, version)
                queue += _usable(wheel.requirements) if wheel else ()
                wanted -= wheel.tops if wheel else set()
        return chosen


@dataclass
class RemovalFinder:
    """Finds the removals of one package."""

    store: LayerStore
    wheels: Wheels
    say: Say
    sdists: Sequence[Sdist]
    """All releases, newest first."""
    problems: list[str]
    read: dict[str, ReadRelease | None] = field(default_factory=dict)

    def find(self) -> list[Removal]:
        """Return the removals of all releases that were read, newest release first."""
        releases = [sdist for sdist in self.sdists if _is_final(sdist.version)]
        first = next((n for n in range(len(releases)) if self.release(releases[n])), None)
        if first is None or not any(
            self._has_tests(sdist) for sdist in (releases[first], releases[len(releases) // 2])
        ):
            raise TaskError(self.problems[0] if self.problems else "no release that was read holds tests")
        newest, removals = self.read[releases[first].version], list[Removal]()
        if newest and newest.lacking:
            removals += self._aged(newest)
        for newer, older in self._boundaries(releases[first:]):
            removals += self._adapted(newer, older)
            removals += self._aged(older)
        return removals

    def _aged(self, release: ReadRelease) -> list[Removal]:
        """Return all removals of an aged release; none if it cannot be tested, or a name was never there."""
        if release.is_too_old or not release.layout.tests:
            return []
        return self._removals(release, release.lacking) or []

    def _adapted(self, newer: ReadRelease, older: ReadRelease) -> list[Removal]:
        """Return what ``older`` uses and ``newer`` does not, if the latter can be tested without it."""
        left = self._removals(newer, newer.lacking)
        if left is None or not newer.layout.tests:
            return []
        also_needed = tuple(f"{removal.dependency}<{removal.bad}" for removal in left)
        own = {"adapted": newer.sdist.version, "also_needed": also_needed}
        gone = frozenset(item for item in older.lacking if (item.distribution, item.use.dotted) not in newer.names)
        bounds = {removal.dependency: Version(removal.bad) for removal in left}
        return [
            removal.model_copy(update=own)
            for removal in self._removals(older, gone) or ()
            if removal.dependency not in bounds or Version(removal.bad) < bounds[removal.dependency]
        ]

    def _has_tests(self, sdist: Sdist) -> bool:
        release = self.release(sdist)
        return release is not None and bool(release.layout.tests)

    def release(self, sdist: Sdist) -> ReadRelease | None:
        """Return ``sdist`` as text; None if it cannot be used."""
        if sdist.version not in self.read:
            self.read[sdist.version] = None
            if sum(release is not None for release in self.read.values()) < MAX_READS:
                self.say(f"fetches and reads {sdist.name} {sdist.version}")
                try:
                    self.read[sdist.version] = self._read(sdist)
                except (InputError, PackageNotFoundError, TaskError) as error:
                    self.problems.append(f"{sdist.version} is left out: {error}")
        return self.read[sdist.version]

    def _read(self, sdist: Sdist) -> ReadRelease:
        tree = self.store.tree(sdist)
        layout = find_layout(tree, sdist.name)
        uses, is_too_old = set[Use](), False
        for path in matching_files(tree, layout.sources):
            try:
                uses |= read_uses((tree / path).read_text(encoding="utf-8", errors="replace"))
            except (SyntaxError, ValueError):
                is_too_old = True
        is_too_old = is_too_old or any(_is_gone_from_python(use.dotted) for use in uses)
        return ReadRelease(sdist, tree, layout, self._lacking(sdist.name, tree, uses), is_too_old)

    def _lacking(self, name: str, tree: Path, uses: set[Use]) -> frozenset[Lacking]:
        needs_setuptools = any(use.dotted.partition(".")[0] == "pkg_resources" for use in uses)
        tops = {use.dotted.partition(".")[0] for use in uses} - sys.stdlib_module_names
        own = {part for path in tree.rglob("*.py") for part in (path.stem, path.parent.name)}
        declared = [*runtime_requirements(tree), *(["setuptools"] if needs_setuptools else [])]
        admitted = self.wheels.admitted(declared, tops - own)
        admitted.pop(canonicalize_name(name), None)
        wheels = {dist: self.wheels.read(dist, version) for dist, version in admitted.items()}
        of_top = {top: dist for dist, wheel in wheels.items() if wheel for top in wheel.tops}
        lacking: set[Lacking] = set()
        for use in uses:
            top = use.dotted.partition(".")[0]
            dist = of_top.get(top, "")
            wheel = wheels.get(dist)
            named = canonicalize_name(distribution_of(top) or top)
            if wheel is not None and wheel.lacks(use.dotted):
                lacking.add(Lacking(dist, use))
            elif not dist and wheels.get(named) is not None and top not in sys.stdlib_module_names:
                lacking.add(Lacking(named, use))
        return frozenset(lacking)

    def _boundaries(self, releases: Sequence[Sdist]) -> Iterator[tuple[ReadRelease, ReadRelease]]:
        """Yield adjacent releases (newer, older) that lack different names, newest first."""
        usable = list(releases)
        last = len(usable) - 1
        anchors = sorted({round(last * part / NUM_GAPS) for part in range(NUM_GAPS + 1)})
        gaps = list(pairwise(anchors))
        adjacent: list[tuple[int, int]] = []
        while gaps:
            low, high = gaps.pop(0)
            newer, older = self._at(usable, low), self._at(usable, high)
            if newer is None or older is None or newer.names == older.names:
                continue
            if high - low == 1:
                adjacent.append((low, high))
                continue
            middle = (low + high) // 2
            if self._at(usable, middle) is not None:
                gaps += [(low, middle), (middle, high)]
        for low, high in sorted(adjacent):
            newer, older = self._at(usable, low), self._at(usable, high)
            if newer and older and older.names - newer.names:
                yield newer, older

    def _at(self, usable: list[Sdist], place: int) -> ReadRelease | None:
        return self.release(usable[place])

    def _removals(self, release: ReadRelease, lacking: frozenset[Lacking]) -> list[Removal] | None:
        """Return a removal per dependency whose names ``lacking`` are; None if one of them has no version with all."""
        tops = {item.use.dotted.partition(".")[0] for item in lacking}
        admitted = self.wheels.admitted([*runtime_requirements(release.tree), "setuptools"], tops)
        removals: list[Removal] = []
        for dist in sorted({item.distribution for item in lacking}):
            uses = {item.use for item in lacking if item.distribution == dist}
            span = self._last_with(release.sdist, dist, admitted.get(dist, ""), uses)
            if span is None:
                told = ", ".join(sorted(use.dotted for use in uses)[:3])
                self.problems.append(f"{release.sdist.version}: no version of {dist} with a wheel has {told}")
                return None
            removals.append(
                Removal(
                    release=release.sdist.version,
                    dependency=dist,
                    names=tuple(sorted({use.dotted for use in uses})),
                    words=tuple(sorted({word for use in uses for word in (use.local, use.dotted.rpartition(".")[2])})),
                    good=span[0],
                    bad=span[1],
                )
            )
        return removals

    def _last_with(self, sdist: Sdist, dist: str, newest: str, uses: set[Use]) -> tuple[str, str] | None:
        """Return the newest version of ``dist`` that has all of ``uses``, and the next one."""
        versions = [v for v in self.wheels.released(dist) if not newest or Version(v) <= Version(newest)]
        times, own = self.wheels.index.upload_times(dist), self.wheels.index.upload_times(sdist.name)
        then = own.get(sdist.version)
        start = next((n for n, v in enumerate(versions) if then and v in times and times[v] <= then), len(versions) - 1)
        places = [start, *range(start - 1, max(start - MAX_TRIES, 0), -1), *range(start + 1, start + MAX_TRIES)]
        good = next((n for n in places if n < len(versions) and self._has_all(dist, versions[n], uses)), None)
        if good is None or good == 0:
            return None
        bad = 0
        while good - bad > 1:
            middle = (good + bad) // 2
            if self._has_all(dist, versions[middle], uses):
                good = middle
            else:
                bad = middle
        return versions[good], versions[bad]

    def _has_all(self, dist: str, version: str, uses: set[Use]) -> bool:
        wheel = self.wheels.read(dist, version)
        if wheel is None:
            return False
        return not any(use.dotted.partition(".")[0] not in wheel.tops or wheel.lacks(use.dotted) for use in uses)


def _usable(texts: Sequence[str]) -> list[Requirement]:
    """Return the requirements that hold here without extras."""
    usable: list[Requirement] = []
    for text in texts:
        try:
            requirement = Requirement(text)
            holds = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue
        if holds:
            usable.append(requirement)
    return usable


def _is_final(version: str) -> bool:
    try:
        return not Version(version).is_prerelease
    except InvalidVersion:
        return False


def _is_gone_from_python(dotted: str) -> bool:
    """Return True for a module or name of the standard library that this Python does not have."""
    top, _, rest = dotted.partition(".")
    if top in _GONE:
        return True
    if top not in sys.stdlib_module_names or top in ("this", "antigravity", "idlelib", "turtle", "tkinter") or not rest:
        return False
    module = top
    for part in rest.split("."):
        try:
            if find_spec(f"{module}.{part}"):
                module = f"{module}.{part}"
                continue
        except (ImportError, ValueError):
            pass
        try:
            return not hasattr(import_module(module), part)
        except ImportError:
            return False
    return False


_GONE = frozenset({
    "__builtin__", "ConfigParser", "Queue", "StringIO", "cPickle", "cStringIO", "urllib2", "urlparse", "httplib",
    "commands", "HTMLParser", "SocketServer", "xmlrpclib", "Cookie", "cookielib", "exceptions", "copy_reg",
})  # fmt: skip
"""Modules of Python 2 only."""
