"""Aged releases of a package: those to build and test with today's dependencies, chosen without running anything.

Reads a package index, sdists and wheels as text. Makes an `AgedEntry`, a catalogue entry with `aged` releases and
`removals` (see `adding/removals.py`). Guarantees: each chosen release uses a name that its newest admitted dependencies
lack, or is the first one that does not use it any more; each release or requirement that is left out has a reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from packaging.version import Version

from repairgym.config.tasks import AgedConfig
from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Split
from repairgym.tasks.adding.adding import ReleaseIndex
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.removals import ReadRelease, RemovalFinder, WheelIndex, Wheels
from repairgym.tasks.adding.test_requirements import (
    OWN_REQUIREMENT,
    find_requirements,
    is_plugin_like,
    own_plugins,
    plugins_of,
)
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import Package, Removal, load_catalogue, matching_files
from repairgym.tasks.layers.environments import build_environment, requirement_name, resolve_lock
from repairgym.tasks.layers.store import LayerStore


class AgedIndex(ReleaseIndex, WheelIndex, Protocol):
    """A server of sdists and wheels."""


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
        with TemporaryDirectory(prefix="repairgym-wheels-") as folder:
            wheels = Wheels(self.index, Path(folder))
            for name in config.packages:
                try:
                    entries.append(self.find(name, config, splits.get(name, config.split), wheels))
                except (PackageNotFoundError, TaskError) as error:
                    left_out[name] = str(error)
                    self.say(f"leaves out {name}: {error}")
        if not entries:
            raise TaskError(f"no package has a release that can be tested: {'; '.join(left_out.values())}")
        return entries, left_out

    def find(self, name: str, config: AgedConfig, split: Split, wheels: Wheels) -> AgedEntry:
        """Return the entry of the package ``name``.

        Raises:
            PackageNotFoundError: the index has no sdist of it.
            TaskError: no release that was read can be tested.
        """
        sdists = self.index.sdists(name)
        problems: list[str] = []
        finder = RemovalFinder(self.store, wheels, self.say, sdists, problems)
        removals = finder.find()
        root = _most_common_root(finder, removals)
        in_root = (r for r in removals if r.adapted and _root_of(finder, r.adapted) == root)
        adapted = _first_of(in_root, config.num_releases)
        aged = _first_of((r for r in removals if not r.adapted), config.num_releases)
        removals = [r for r in removals if (r.release, r.adapted) in {**adapted, **aged}]
        if not removals:
            raise TaskError(f"{name}: no release that was read can be tested and uses names that its dependencies lack")
        versions = sorted({v for r in removals for v in (r.release, r.adapted) if v}, key=Version)
        chosen = [release for version in versions if (release := finder.read[version])]
        self.say(f"chooses {', '.join(versions)} of {name}")
        requirements = self._requirements([release for release in chosen if release.layout.tests], problems)
        package = Package(
            name=name,
            split=split,
            version=versions[-1],
            # Of aged releases the check puts the wheel's files there, wherever a release has its own.
            root=chosen[-1].layout.root if root is None else root,
            sources=_patterns(release.layout.sources for release in chosen),
            tests=_patterns(release.layout.tests for release in chosen),
            requirements=tuple(requirements),
            plugins=self._plugins(chosen[-1], requirements),
            aged=tuple(dict.fromkeys(release for release, _ in aged)),
            removals=tuple(removals),
            sdists={release.sdist.version: release.sdist.sha256 for release in chosen},
        )
        comments = {
            "tests": "the places of tests in all of these releases",
            "requirements": "; ".join(f"{required}: {why}" for required, why in requirements.items()),
            "aged": f"they use names that a dependency lacks by now; the newest release is {sdists[0].version}",
        }
        return AgedEntry(package, {k: v for k, v in comments.items() if v}, tuple(problems))

    def _plugins(self, release: ReadRelease, requirements: Iterable[str]) -> tuple[str, ...]:
        """Return the pytest plugins that the tests use, the package's own ones included."""
        asked = [required for required in requirements if is_plugin_like(required)]
        if not asked:
            return own_plugins(release.tree)
        _, folder = build_environment(self.store, resolve_lock(tuple(sorted(asked))))
        return tuple(dict.fromkeys((*plugins_of(folder, asked), *own_plugins(release.tree))))

    def _requirements(self, chosen: Sequence[ReadRelease], problems: list[str]) -> dict[str, str]:
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


def _root_of(finder: RemovalFinder, version: str) -> str:
    release = finder.read[version]
    return release.layout.root if release else ""


def _most_common_root(finder: RemovalFinder, removals: Iterable[Removal]) -> str | None:
    """Return the root of most adapted releases, of the newest ones in a tie: an entry has one; None without any."""
    versions = dict.fromkeys(removal.adapted for removal in removals if removal.adapted)
    return next((root for root, _ in Counter(_root_of(finder, version) for version in versions).most_common(1)), None)


def _first_of(removals: Iterable[Removal], number: int) -> dict[tuple[str, str], None]:
    """Return (release, adapted) of the first ``number`` removals."""
    return dict.fromkeys(list(dict.fromkeys((removal.release, removal.adapted) for removal in removals))[:number])


def _patterns(each: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for patterns in each for pattern in patterns))
