"""Aged releases of a package: those to build and test with today's dependencies, chosen without running anything.

Reads a package index and sdists as text. Makes an `AgedEntry`, a catalogue entry with `aged` releases. Guarantees:
releases are the last of their series, spread over the whole life of the package; asking for more keeps the earlier
choice; each release or requirement that is left out has a reason.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from repairgym.config.tasks import AgedConfig
from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.records import Split
from repairgym.tasks.adding.adding import ReleaseIndex
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.layout import Layout, find_layout
from repairgym.tasks.adding.test_requirements import OWN_REQUIREMENT, find_requirements
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import Package, load_catalogue, matching_files
from repairgym.tasks.layers.environments import requirement_name
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore

MAX_READ = 4
"""Releases that are read for each one that is wanted: many sdists hold no tests."""


class AgedIndex(ReleaseIndex, Protocol):
    """A server that also knows which distributions have wheels."""

    def wheel_versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of ``name`` with a wheel for this Python; none if it is unknown."""
        ...


@dataclass(frozen=True)
class AgedEntry:
    """A package with aged releases, and what was left out."""

    package: Package
    comments: dict[str, str]
    problems: tuple[str, ...]

    def text(self, command: str) -> str:
        """Return the catalogue entry."""
        return render_entry(self.package, self.comments, self.problems, command)


@dataclass(frozen=True)
class _Release:
    """A release that holds tests."""

    sdist: Sdist
    tree: Path
    layout: Layout


@dataclass(frozen=True)
class AgedFinder:
    """Chooses aged releases."""

    index: AgedIndex
    store: LayerStore
    say: Say

    def find_all(self, config: AgedConfig) -> tuple[list[AgedEntry], dict[str, str]]:
        """Return the entries of the packages of ``config``, and name -> reason of those that get none.

        Raises:
            TaskError: no package gets an entry.
        """
        # A package keeps its split: what a model is tested on is in no training set.
        splits = {known.name: known.split for known in load_catalogue(Path("catalog/packages.toml")).package}
        entries: list[AgedEntry] = []
        left_out: dict[str, str] = {}
        for name in config.packages:
            try:
                entries.append(self.find(name, config.num_releases, splits.get(name, config.split)))
            except (PackageNotFoundError, TaskError) as error:
                left_out[name] = str(error)
                self.say(f"leaves out {name}: {error}")
        if not entries:
            raise TaskError(f"no package has a release that can be tested: {'; '.join(left_out.values())}")
        return entries, left_out

    def find(self, name: str, num_releases: int, split: Split) -> AgedEntry:
        """Return the entry of the package ``name`` with at most ``num_releases`` aged releases.

        Raises:
            PackageNotFoundError: the index has no sdist of it.
            TaskError: no release that was read can be tested.
        """
        sdists = self.index.sdists(name)
        problems: list[str] = []
        chosen: list[_Release] = []
        for sdist in spread(last_of_series(sdists))[: MAX_READ * num_releases]:
            if len(chosen) < num_releases and (release := self._read(sdist, problems)):
                chosen.append(release)
        if not chosen:
            raise TaskError(f"{name}: no release can be tested: {problems[0]}")
        chosen.sort(key=lambda release: Version(release.sdist.version))
        self.say(f"chooses {', '.join(release.sdist.version for release in chosen)} of {name}")
        requirements = self._requirements(chosen, problems)
        package = Package(
            name=name,
            split=split,
            version=chosen[-1].sdist.version,
            # The check puts the wheel's files there, wherever a release has its own.
            root=chosen[-1].layout.root,
            sources=_patterns(release.layout.sources for release in chosen),
            tests=_patterns(release.layout.tests for release in chosen),
            requirements=tuple(requirements),
            aged=tuple(release.sdist.version for release in chosen),
            sdists={release.sdist.version: release.sdist.sha256 for release in chosen},
        )
        comments = {
            "tests": "the places of tests in all of these releases",
            "requirements": "; ".join(f"{required}: {why}" for required, why in requirements.items()),
            "aged": f"spread over the last releases of each series; the newest of all is {sdists[0].version}",
        }
        return AgedEntry(package, {k: v for k, v in comments.items() if v}, tuple(problems))

    def _read(self, sdist: Sdist, problems: list[str]) -> _Release | None:
        """Return a release with tests; else None, with a problem."""
        self.say(f"fetches and reads {sdist.name} {sdist.version}")
        try:
            tree = self.store.tree(sdist)
            layout = find_layout(tree, sdist.name)
        except (InputError, PackageNotFoundError, TaskError) as error:
            problems.append(f"{sdist.version} is left out: {error}")
            return None
        if not layout.tests:
            problems.append(f"{sdist.version} is left out: its sdist holds no tests")
            return None
        return _Release(sdist, tree, layout)

    def _requirements(self, chosen: Sequence[_Release], problems: list[str]) -> dict[str, str]:
        """Return what the tests need beyond the releases' own requirements -> why."""
        needed: dict[str, str] = {}
        for release in reversed(chosen):
            files = matching_files(release.tree, release.layout.tests)
            needs = find_requirements(release.tree, release.sdist.name, release.layout, files)
            for text in needs.requirements:
                name = requirement_name(text)
                if needs.reasons[name] != OWN_REQUIREMENT:
                    needed.setdefault(name, f"in {release.sdist.version} {needs.reasons[name]}")
        for name in [name for name in needed if not self.index.wheel_versions(name)]:
            problems.append(f"{name} ({needed.pop(name)}) is left out: the index has no wheel of it")
        return dict(sorted(needed.items()))


def last_of_series(sdists: Sequence[Sdist]) -> list[Sdist]:
    """Return the newest release of each major and minor version, newest first."""
    tops: dict[tuple[int, ...], Sdist] = {}
    for sdist in sorted(sdists, key=lambda sdist: Version(sdist.version), reverse=True):
        tops.setdefault((*Version(sdist.version).release, 0)[:2], sdist)
    return list(tops.values())


def spread(sdists: Sequence[Sdist]) -> list[Sdist]:
    """Return ``sdists`` so that any number of first ones is spread over all: the middle, then middles of the gaps.

    The newest releases mostly hold, and the oldest are mostly broken by Python itself.
    """
    gaps, order = [(0, len(sdists))], list[Sdist]()
    while gaps:
        first, end = gaps.pop(0)
        middle = (first + end) // 2
        order.append(sdists[middle])
        gaps += [gap for gap in ((first, middle), (middle + 1, end)) if gap[0] < gap[1]]
    return order


def _patterns(each: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for patterns in each for pattern in patterns))
