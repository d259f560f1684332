"""Part of source `breakages`: search older versions that repair a release, and write them as bounds.

Runs the release's check with given versions through a `TrialRelease`. A failure names suspects. For one suspect after
the other the search looks for the newest series of versions that changes the failure: growing steps, then halving. If
the failure disappears, bisection finds the first version that breaks. If it only changes, the pin stays and the search
continues from the new failure, because culprits can hide one another. Versions that are known to lack names which the
release uses are avoided first; if that repairs anything, the search is over. Where the index has upload times, all
versions of the release's own time are tried before: equal failures end the search, fewer replace it. Guarantees: a
followed run breaks no test that passed with the newest versions; a question is run once; runs are counted, and a search
without runs left returns its best result; `read_bounds` reads the text of `bounds_recipe`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

from packaging.version import Version

from repairgym.config.tasks import VersionSearchConfig
from repairgym.tasks.layers.requirement_pins import Place, bound_edit
from repairgym.tasks.sources.build_checks import WHEEL_TEST

SERIES_STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""Series to try, counted back from the one before the current version."""
MANY_MAJORS = 10
"""Projects with more major versions than this have one series per major version."""
Versions = Mapping[str, str]
"""Name of a distribution -> version."""
Failures = Mapping[str, str]
"""Failing test -> message."""
_CHANGING = re.compile(r"0x[0-9a-f]+|\d+")


class Pin(NamedTuple):
    """A requirement to bound, and its list."""

    place: Place
    name: str


Pins = Mapping[Pin, str]
"""Pin -> version."""


class TrialRelease(Protocol):
    """A release that can run with given versions of its requirements."""

    @property
    def newest(self) -> Versions:
        """Newest versions of all installed distributions."""
        ...

    def suspects(self, place: Place, messages: str) -> list[str]:
        """Return distributions that may have caused failures with these ``messages``, the likeliest first."""
        ...

    def released(self, name: str) -> Sequence[str]:
        """Return the versions of ``name``, the newest first."""
        ...

    def older_versions(self, pins: Pins) -> Versions:
        """Return all versions older than the newest under ``pins``; empty if they cannot be combined."""
        ...

    def own_time(self, place: Place) -> Pins:
        """Return all versions of ``place`` from the time of the release; empty where the index gives no dates."""
        ...

    def known(self) -> "Mapping[Pin, Bound]":
        """Return versions that are known to lack names that the release uses, by pin."""
        ...

    async def failures(self, pins: Pins, older: Versions, among: Failures) -> Failures | None:
        """Return failures of the tests of ``among`` and of the build; None if they cannot run."""
        ...


class Bound(NamedTuple):
    """An older version that works, and the first newer one known to fail."""

    good: str
    bad: str


@dataclass(frozen=True)
class Trial:
    """Pins and their failures."""

    pins: Mapping[Pin, str]
    failures: Failures
    too_new: Mapping[Pin, str]
    """Oldest version of each pin known to fail."""

    @property
    def place(self) -> Place:
        """List of requirements to change: that of the build if no wheel can be built."""
        return "build" if WHEEL_TEST in self.failures else "runtime"


@dataclass
class VersionSearch:
    """One search; call `find` once."""

    release: TrialRelease
    first: Failures
    """Failures with the newest versions."""
    config: VersionSearchConfig
    num_runs: int = 0
    seen: set[str] = field(default_factory=set)
    """Failures that the search has followed."""
    known: dict[tuple[frozenset[tuple[Pin, str]], frozenset[str]], Failures | None] = field(default_factory=dict)

    async def find(self) -> dict[Pin, Bound]:
        """Return bounds that repair tests; empty without any."""
        start, told = Trial({}, self.first, {}), _signature(self.first)
        self.seen.add(told)
        known = await self._with_known(start)
        old = None if known else await self._at_own_time(start)
        if old and _signature(old.failures) == told:
            return {}
        # What works with the versions of its time needs no search for culprits.
        best = known or (old if old and old.failures.keys() < self.first.keys() else await self._descend(start, 1))
        if len(best.failures) == len(self.first):
            return {}
        return await self._bisect_all(best, await self._needed(best))

    @property
    def is_spent(self) -> bool:
        """True when all runs are used."""
        return self.num_runs >= self.config.num_runs

    async def _with_known(self, start: Trial) -> Trial | None:
        """Return ``start`` without the versions that are known to lack names; None if that repairs nothing."""
        known = self.release.known()
        pins = {pin: bound.good for pin, bound in known.items()}
        failures = await self._failures(pins, start.failures) if pins else None
        if failures is None or not failures.keys() < start.failures.keys():
            return None
        return Trial(pins, failures, {pin: bound.bad for pin, bound in known.items()})

    async def _at_own_time(self, start: Trial) -> Trial | None:
        """Return ``start`` with the versions of the release's time; None without any that can be combined."""
        trial = start
        while trial.failures and (pins := self.release.own_time(trial.place)) and not pins.keys() <= trial.pins.keys():
            failures = await self._failures({**trial.pins, **pins}, trial.failures)
            if failures is None:
                return None
            too_new = {pin: self.release.newest[pin.name] for pin in pins}
            trial = Trial({**trial.pins, **pins}, failures, {**trial.too_new, **too_new})
        return trial if trial.pins else None

    async def _descend(self, trial: Trial, depth: int) -> Trial:
        """Return the trial with the fewest failing tests that ``trial`` leads to."""
        best = trial
        messages = " ".join(trial.failures.values())
        for name in self.release.suspects(trial.place, messages)[: self.config.num_suspects]:
            candidate = await self._go_back(trial, Pin(trial.place, name))
            if candidate and candidate.failures and depth < self.config.num_pins:
                candidate = await self._descend(candidate, depth + 1)
            if candidate and len(candidate.failures) < len(best.failures):
                best = candidate
            if not best.failures or self.is_spent:
                break
        return best

    async def _go_back(self, trial: Trial, pin: Pin) -> Trial | None:
        """Return ``trial`` with the newest series of ``pin`` that changes its failure; None without a gain."""
        current = trial.pins.get(pin, self.release.newest[pin.name])
        series = self._series(pin.name, current)
        tried = {-1: trial.failures}
        newer = -1
        steps = SERIES_STEPS[: self.config.num_older_series] if series else ()
        for step in dict.fromkeys(min(step, len(series) - 1) for step in steps):
            if self.is_spent:
                return None
            failures = await self._with(trial, pin, series[step])
            if failures is None:
                continue
            tried[step] = failures
            if _signature(failures) != _signature(trial.failures):
                older = await self._halve(trial, pin, series, newer, step, tried)
                return self._followed(trial, pin, [current, *series], older + 1, tried[older])
            newer = step
        return None

    async def _halve(
        self, trial: Trial, pin: Pin, series: list[str], newer: int, older: int, tried: dict[int, Failures]
    ) -> int:
        """Return the newest place of ``series`` with another failure; ``older`` has one, ``newer`` the same."""
        while older - newer > 1 and not self.is_spent:
            middle = (newer + older) // 2
            failures = await self._with(trial, pin, series[middle])
            if failures is not None and _signature(failures) != _signature(trial.failures):
                tried[middle], older = failures, middle
            else:
                newer = middle
        return older

    def _followed(self, trial: Trial, pin: Pin, versions: list[str], place: int, failures: Failures) -> Trial | None:
        """Return the trial with ``versions[place]``, unless it breaks other tests or was followed before."""
        signature = _signature(failures)
        if failures.keys() - trial.failures.keys() or (failures and signature in self.seen):
            return None
        self.seen.add(signature)
        pins = {**trial.pins, pin: versions[place]}
        return Trial(pins, failures, {**trial.too_new, pin: versions[place - 1]})

    def _series(self, name: str, current: str) -> list[str]:
        """Return the last version of each series (major and minor version) before that of ``current``."""
        versions = [version for version in self.release.released(name) if Version(version) < Version(current)]
        depth = 1 if len({Version(version).major for version in versions}) > MANY_MAJORS else 2
        tops: dict[tuple[int, ...], str] = {}
        for version in versions:
            tops.setdefault(Version(version).release[:depth], version)
        tops.pop(Version(current).release[:depth], None)
        return list(tops.values())

    async def _with(self, trial: Trial, pin: Pin, version: str) -> Failures | None:
        return await self._failures({**trial.pins, pin: version}, trial.failures)

    async def _failures(self, pins: Pins, among: Failures) -> Failures | None:
        """Return the failures with ``pins``, from at most one run; None if it cannot run."""
        question = frozenset(pins.items()), frozenset(among)
        if question not in self.known:
            older = self.release.older_versions(pins)
            # Incompatible versions cost no run.
            self.num_runs += bool(older)
            self.known[question] = await self.release.failures(pins, older, among) if older else None
        return self.known[question]

    async def _repairs(self, pins: Pins, best: Trial) -> bool:
        """Return True if ``pins`` repair all that ``best`` repairs."""
        failures = await self._failures(pins, self.first)
        return failures is not None and failures.keys() <= best.failures.keys()

    async def _needed(self, best: Trial) -> dict[Pin, str]:
        """Return the pins that are needed for the repair."""
        needed = dict(best.pins)
        size = len(needed) // 2
        while size:
            pins = list(needed)
            for first in range(0, len(pins), size):
                others = {pin: version for pin, version in needed.items() if pin not in pins[first : first + size]}
                if others and not self.is_spent and await self._repairs(others, best):
                    needed = others
            size //= 2
        return needed

    async def _bisect_all(self, best: Trial, pins: Pins) -> dict[Pin, Bound]:
        """Return the newest version of each pin that still repairs, and its successor, one pin after the other."""
        good = dict(pins)
        bounds: dict[Pin, Bound] = {}
        for pin in pins:
            low, high = Version(good[pin]), Version(best.too_new[pin])
            between = [version for version in self.release.released(pin.name) if low < Version(version) < high]
            newer = [*reversed(between), best.too_new[pin]]
            while len(newer) > 1 and not self.is_spent:
                middle = (len(newer) - 1) // 2
                if await self._repairs({**good, pin: newer[middle]}, best):
                    good[pin], newer = newer[middle], newer[middle + 1 :]
                else:
                    newer = newer[: middle + 1]
            # Without runs left, this version is known to break, but may not be the first.
            bounds[pin] = Bound(good[pin], newer[-1])
        return bounds


def _signature(failures: Failures) -> str:
    """Return failing tests and messages without numbers that differ from run to run."""
    return "\n".join(f"{test_id} {_CHANGING.sub('#', failures[test_id])}" for test_id in sorted(failures))


Files = dict[str, str | None]
_RECIPE_BOUND = re.compile(r"(\S+) (<\S+) \(newest ")


def bound_edits(tree: Path, bounds: Pins) -> Files | None:
    """Return the settings files of ``tree`` with ``bounds``; None if a bound has no place."""
    files: Files = {}
    for pin, bound in bounds.items():
        edit = bound_edit(tree, files, pin.place, pin.name, bound)
        if edit is None:
            return None
        files[edit[0]] = edit[1]
    return files


def bounds_recipe(bounds: Mapping[Pin, tuple[str, str]]) -> str:
    """Describe the repair; ``bounds``: pin -> (first version that breaks, newest version)."""
    by_place: dict[str, list[str]] = {place: [] for place in get_args(Place)}
    for pin, (bad, newest) in bounds.items():
        by_place[pin.place].append(f"{pin.name} <{bad} (newest {newest})")
    return " / ".join(f"{place} requirements: {'; '.join(texts)}" for place, texts in by_place.items() if texts)


def read_bounds(recipe: str) -> dict[Pin, str]:
    """Return pin -> bound from the text of `bounds_recipe`."""
    read: dict[Pin, str] = {}
    for part in recipe.split(" / "):
        place: Place = "build" if part.startswith("build ") else "runtime"
        read.update({Pin(place, name): bound for name, bound in _RECIPE_BOUND.findall(part.partition(": ")[2])})
    return read
