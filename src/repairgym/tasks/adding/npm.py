"""Add a package of npm to a catalogue: from a name to an entry and a lock.

Reads the registry and the archives of releases. Makes an `Added` record as `adding` does. Guarantees: no code of the
package runs outside of a sandbox; the package is no part of its own environment, where its repaired code could be read.
"""

import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.tasks.adding.adding import Added
from repairgym.tasks.adding.npm_environment import resolve_without_itself
from repairgym.tasks.adding.npm_project import FRAMEWORKS, NodeFolder, patterns_of_tests, read_folder
from repairgym.tasks.adding.npm_trial import NodeTrial
from repairgym.tasks.javascript.syntax import code_of
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.npm_registry import NpmRegistry
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import tree_digest

_MAX_NEWEST = 3
_NUM_FETCHED = 6
"""Archives fetched with one start of npm."""


class _Release(NamedTuple):
    """A release with its tests."""

    sdist: Sdist
    folder: NodeFolder


@dataclass(frozen=True)
class NpmAdder:
    """Adds packages of npm."""

    trial: NodeTrial
    registry: NpmRegistry = field(default_factory=NpmRegistry)

    async def package(self, name: str, num_pairs: int) -> Added:
        """Return the newest usable release of ``name`` with at most ``num_pairs`` pairs of releases.

        Raises:
            PackageNotFoundError: the registry does not have it.
            TaskError: no archive holds tests, none of them passes, or every framework needs the package itself.
        """
        self.trial.say("asks the registry for releases and integrity hashes")
        sdists = self.registry.releases(name)
        newest = self._newest(name, sdists)
        pairs, releases, num_compared = self._pairs(newest, sdists, num_pairs)
        folder = newest.folder
        resolved = resolve_without_itself(
            folder,
            [release.folder for release in releases],
            FRAMEWORKS[folder.runner],
            self.trial.node_version,
            self.trial.say,
        )
        unusable = {each.sdist.version for each in releases if resolved.left_out & each.folder.required.keys()}
        pairs = [pair for pair in pairs if not unusable & set(pair)]
        tried = await self.trial.run(folder, resolved.lock)
        versions = {newest.sdist.version, *(version for pair in pairs for version in pair)}
        package = NpmPackage(
            name=name,
            split=self.trial.split,
            runner=folder.runner,
            sources=folder.sources,
            tests=patterns_of_tests(tried.kept),
            excluded=tuple(path for path in folder.tests if path not in tried.kept),
            version=newest.sdist.version,
            releases=tuple(pairs),
            sdists={sdist.version: sdist.sha256 for sdist in reversed(sdists) if sdist.version in versions},
        )
        told = f"of {num_compared} adjacent pairs, those whose sources and tests both changed"
        return self.trial.added(package, tried, resolved.lock, {"releases": told}, resolved.told)

    def _newest(self, name: str, sdists: tuple[Sdist, ...]) -> _Release:
        for sdist in sdists[:_MAX_NEWEST]:
            self.trial.say(f"fetches and reads {sdist.name} {sdist.version}")
            if release := self._read(sdist):
                return release
        raise TaskError(
            f"{name}: none of its {len(sdists[:_MAX_NEWEST])} newest archives holds tests of {', '.join(FRAMEWORKS)}; "
            "most packages leave their tests out of npm"
        )

    def _read(self, sdist: Sdist) -> _Release | None:
        """Return the release with its tests; None without."""
        tree = self.trial.store.tree(sdist)
        try:
            return _Release(sdist, read_folder(tree, sdist.name))
        except TaskError:
            return None

    def _pairs(
        self, newest: _Release, sdists: tuple[Sdist, ...], num: int
    ) -> tuple[list[tuple[str, str]], list[_Release], int]:
        """Return pairs of adjacent releases whose sources and tests both changed, the releases, the number compared."""
        pairs: list[tuple[str, str]] = []
        releases: list[_Release] = []
        num_compared, newer, state = 0, newest.sdist, _state(newest.folder)
        place = [sdist.version for sdist in sdists].index(newest.sdist.version)
        others = sdists[place + 1 :][: 2 * num]
        for number, sdist in enumerate(others):
            if len(pairs) == num:
                break
            if number % _NUM_FETCHED == 0:
                self._fetch(others[number : number + _NUM_FETCHED])
            self.trial.say(f"compares {sdist.version} and {newer.version}")
            try:
                older = self._read(sdist)
            except (InputError, PackageNotFoundError):
                continue
            if older is None or older.folder.runner != newest.folder.runner:
                break
            num_compared, older_state = num_compared + 1, _state(older.folder)
            if all(state[part] != older_state[part] for part in (0, 1)):
                pairs.insert(0, (sdist.version, newer.version))
            releases.insert(0, older)
            newer, state = sdist, older_state
        return pairs, releases, num_compared

    def _fetch(self, sdists: tuple[Sdist, ...]) -> None:
        """Make the missing trees with one start of npm; one that cannot be made fails where it is read."""
        missing = [sdist for sdist in sdists if not self.trial.store.has("trees", tree_digest(sdist))]
        if len(missing) < 2:
            return
        with tempfile.TemporaryDirectory() as name, contextlib.suppress(PackageNotFoundError, InputError):
            for sdist, path in self.registry.fetch_all(missing, Path(name)).items():
                self.trial.store.tree_of_file(sdist, path)


def _state(folder: NodeFolder) -> tuple[dict[str, object], dict[str, object]]:
    """Return the code of sources and tests without comments, by path."""
    paths = {path for pattern in folder.sources for path in folder.tree.glob(pattern) if path.is_file()}
    sources = {path.relative_to(folder.tree).as_posix() for path in paths} - set(folder.tests)
    return _codes(folder.tree, sources), _codes(folder.tree, folder.tests)


def _codes(tree: Path, paths: Iterable[str]) -> dict[str, object]:
    codes: dict[str, object] = {}
    for path in paths:
        text = (tree / path).read_text(encoding="utf-8", errors="replace")
        try:
            codes[path] = code_of(path, text)
        except SyntaxError:
            codes[path] = text
    return codes
