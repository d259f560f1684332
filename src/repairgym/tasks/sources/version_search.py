"""Part of source `breakages`: which older versions repair a release that the newest ones break.

Asks a `TrialRelease` for runs of the release's check with given versions; makes bounds. A failure names suspects. Of one
suspect after the other the search looks for the newest series of versions with which the failure is another one:
steps that grow, then halving. When that repairs, bisection finds the first version that breaks; when it only changes
the failure, the pin stays and the search goes on from the new failure, because culprits can hide behind one another.
Versions and not dates are searched: not every index knows when a file was uploaded.
Invariants: no test that passed beside the newest versions fails in a run that is followed; the same question is run
once; runs are counted, and a search that has used up its runs returns the best that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

from packaging.version import Version

from repairgym.config.tasks import BreakageConfig
from repairgym.tasks.layers.requirement_pins import Place, bound_edit
from repairgym.tasks.sources.build_checks import WHEEL_TEST

SERIES_STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""How many series before the version at hand are tried, counted back from the one before it."""
MANY_MAJORS = 10
"""Projects with more major versions than this count a series by its major version alone."""
Versions = Mapping[str, str]
"""Name of a distribution -> version."""
Failures = Mapping[str, str]
"""Failing test -> message."""
_CHANGING = re.compile(r"0x[0-9a-f]+|\d+")


class Pin(NamedTuple):
    """A requirement whose versions are bounded, and the list that it stands in."""

    place: Place
    name: str


Pins = Mapping[Pin, str]
"""What is pinned -> version."""


class TrialRelease(Protocol):
    """A release that can be run with given versions of what it requires."""

    @property
    def newest(self) -> Versions:
        """The newest versions, of everything that is installed."""
        ...

    def suspects(self, place: Place, messages: str) -> list[str]:
        """Distributions that may have caused failures with the text ``told``, the likeliest first."""
        ...

    def released(self, name: str) -> Sequence[str]:
        """Versions of ``name``, the newest first."""
        ...

    def older_versions(self, pins: Pins) -> Versions:
        """What is older than the newest when ``pins`` hold: the pins and what goes together with them; none can."""
        ...

    async def failures(self, pins: Pins, older: Versions, among: Failures) -> Failures | None:
        """What fails of the tests of ``among`` and of the build; None when this cannot be run."""
        ...


class Bound(NamedTuple):
    """An older version that works, and the first newer one that is known not to."""

    good: str
    bad: str


@dataclass(frozen=True)
class Trial:
    """Pins and what fails beside them."""

    pins: Mapping[Pin, str]
    failures: Failures
    too_new: Mapping[Pin, str]
    """Oldest version of each pin that is known not to do."""

    @property
    def place(self) -> Place:
        """Which list of requirements has to change: that of the build when the wheel cannot be made."""
        return "build" if WHEEL_TEST in self.failures else "runtime"


@dataclass
class VersionSearch:
    """One search; ask `find` once."""

    release: TrialRelease
    first: Failures
    """What fails beside the newest versions."""
    config: BreakageConfig
    num_runs: int = 0
    seen: set[str] = field(default_factory=set)
    """Failures from which the search has gone on."""
    known: dict[tuple[frozenset[tuple[Pin, str]], frozenset[str]], Failures | None] = field(default_factory=dict)

    async def find(self) -> dict[Pin, Bound]:
        """Bounds that repair tests; empty when no versions do."""
        self.seen.add(_signature(self.first))
        best = await self._descend(Trial({}, self.first, {}), 1)
        if len(best.failures) == len(self.first):
            return {}
        return await self._bisect_all(best, await self._needed(best))

    @property
    def is_spent(self) -> bool:
        """Whether all runs are used up."""
        return self.num_runs >= self.config.num_runs

    async def _descend(self, trial: Trial, depth: int) -> Trial:
        """The trial with the fewest failing tests that ``trial`` leads to."""
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
        """``trial`` with the newest series of ``pin`` that changes its failure; None when nothing is gained by it."""
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
        """The newest place of ``series`` with another failure; ``older`` is one, at ``newer`` it is the same."""
        while older - newer > 1 and not self.is_spent:
            middle = (newer + older) // 2
            failures = await self._with(trial, pin, series[middle])
            if failures is not None and _signature(failures) != _signature(trial.failures):
                tried[middle], older = failures, middle
            else:
                newer = middle
        return older

    def _followed(self, trial: Trial, pin: Pin, versions: list[str], place: int, failures: Failures) -> Trial | None:
        """The trial with ``versions[place]``, unless it breaks other tests or was there before."""
        signature = _signature(failures)
        if failures.keys() - trial.failures.keys() or (failures and signature in self.seen):
            return None
        self.seen.add(signature)
        pins = {**trial.pins, pin: versions[place]}
        return Trial(pins, failures, {**trial.too_new, pin: versions[place - 1]})

    def _series(self, name: str, current: str) -> list[str]:
        """The last version of each series (major and minor version) before that of ``current``."""
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
        """What fails with ``pins``, from one run at most; None when it cannot be run."""
        question = frozenset(pins.items()), frozenset(among)
        if question not in self.known:
            older = self.release.older_versions(pins)
            # Versions that do not go together are no run.
            self.num_runs += bool(older)
            self.known[question] = await self.release.failures(pins, older, among) if older else None
        return self.known[question]

    async def _repairs(self, pins: Pins, best: Trial) -> bool:
        """Whether ``pins`` repair all that ``best`` repairs."""
        failures = await self._failures(pins, self.first)
        return failures is not None and failures.keys() <= best.failures.keys()

    async def _needed(self, best: Trial) -> dict[Pin, str]:
        """The pins without which fewer tests are repaired."""
        needed = dict(best.pins)
        for pin in list(needed)[:-1]:
            others = {other: version for other, version in needed.items() if other != pin}
            if not self.is_spent and await self._repairs(others, best):
                needed = others
        return needed

    async def _bisect_all(self, best: Trial, pins: Pins) -> dict[Pin, Bound]:
        """The newest version of each pin that still repairs, one after the other, and what comes after it."""
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
            # Where runs are used up, this is where it is known to break and not where it begins to.
            bounds[pin] = Bound(good[pin], newer[-1])
        return bounds


def _signature(failures: Failures) -> str:
    """Failing tests and what they say, without numbers that differ from run to run."""
    return "\n".join(f"{test_id} {_CHANGING.sub('#', failures[test_id])}" for test_id in sorted(failures))


Files = dict[str, str | None]
_RECIPE_BOUND = re.compile(r"(\S+) (<\S+) \(newest ")


def bound_edits(tree: Path, bounds: Pins) -> Files | None:
    """Settings files of ``tree`` with ``bounds``; None when there is no place for one."""
    files: Files = {}
    for pin, bound in bounds.items():
        edit = bound_edit(tree, files, pin.place, pin.name, bound)
        if edit is None:
            return None
        files[edit[0]] = edit[1]
    return files


def bounds_recipe(bounds: Mapping[Pin, tuple[str, str]]) -> str:
    """The repair in words; ``bounds``: pin -> (first version that breaks, newest version)."""
    texts = {
        place: "; ".join(_bound_text(pin, *versions) for pin, versions in bounds.items() if pin.place == place)
        for place in get_args(Place)
    }
    return " / ".join(f"{place} requirements: {text}" for place, text in texts.items() if text)


def _bound_text(pin: Pin, bad: str, newest: str) -> str:
    return f"{pin.name} <{bad} (newest {newest})"


def read_bounds(recipe: str) -> dict[Pin, str]:
    """What `bounds_recipe` wrote: pin -> bound."""
    read: dict[Pin, str] = {}
    for part in recipe.split(" / "):
        place: Place = "build" if part.startswith("build ") else "runtime"
        read.update({Pin(place, name): bound for name, bound in _RECIPE_BOUND.findall(part.partition(": ")[2])})
    return read
