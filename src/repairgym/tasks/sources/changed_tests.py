"""Test files that changed between two releases, and what a fix does to the tests of the other files.

Reads two trees and runs of the newer one. A pair of releases runs its many trials on the changed files only, because
the tests that a release fixed stand there. Guarantees: where a file that tests may read changed as well, all test files
count as changed; hunks that break a test of another file are seen by one run of these files.
"""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from repairgym.records import TestOutcome
from repairgym.tasks.layers.catalogue import Package, matching_files
from repairgym.tasks.sources.fixes import Fix
from repairgym.tasks.sources.pairs import Pair

_ROOT = PurePosixPath(".")


def changed_test_files(package: Package, older: Path, newer: Path) -> tuple[str, ...]:
    """Return the test files of ``newer`` that ``older`` has otherwise or not at all.

    All of them are returned when none changed, or when a helper, a data file or a fixture near them did.
    """
    files = package.test_files(newer)
    changed = tuple(path for path in files if _differs(path, older, newer))
    tests = {*matching_files(newer, package.tests), *matching_files(older, package.tests)}
    near = _files_near(files, newer, package) | _files_near(files, older, package)
    return changed if changed and not any(_differs(path, older, newer) for path in near - tests) else files


def _differs(path: str, older: Path, newer: Path) -> bool:
    places = older / path, newer / path
    texts = [place.read_bytes() if place.is_file() else None for place in places]
    return texts[0] != texts[1]


def _files_near(test_files: tuple[str, ...], tree: Path, package: Package) -> set[str]:
    """Return the files that tests may read: all of their topmost folder without sources, and each conftest above."""
    with_sources = {parent for path in matching_files(tree, package.sources) for parent in PurePosixPath(path).parents}
    parents = {parent for path in test_files for parent in PurePosixPath(path).parents}
    tops = {parent for parent in parents - with_sources if parent.parent in with_sources or parent.parent == _ROOT}
    inside = matching_files(tree, [f"{top}/**/*" for top in tops if top != _ROOT])
    return {*inside, *matching_files(tree, [f"{parent}/conftest.py" for parent in parents])}


@dataclass
class OtherTests:
    """The test files of a pair that did not change."""

    pair: Pair
    files: tuple[str, ...]
    passing: tuple[str, ...] | None = field(default=None, init=False)
    """Their tests that pass in the newer state; read at the first fix."""
    broken: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict, init=False)
    """Numbers of a fix's hunks -> result of `broken_by`."""

    async def broken_by(self, fix: Fix) -> tuple[str, ...]:
        """Return tests that pass in the newer state, twice where it counts, and fail with ``fix`` reverted."""
        if self.files and fix.numbers not in self.broken:
            self.broken[fix.numbers] = await self._broken_by(fix)
        return self.broken.get(fix.numbers, ())

    async def _broken_by(self, fix: Fix) -> tuple[str, ...]:
        if self.passing is None:
            run = await self.pair.run({}, self.pair.bounded_request(self.files))
            results = [(i, result.outcome) for i, result in run.results.items() if "::" in i]
            self.passing = tuple(i for i, outcome in results if outcome is TestOutcome.PASSED)
        without = await self.pair.run(fix.broken_files, self.pair.bounded_request(self.files))
        broken = self.pair.broken_of(without, self.passing)
        if not broken:
            return ()
        again = await self.pair.run({}, self.pair.bounded_request(broken))
        return tuple(test_id for test_id in broken if again.outcome(test_id) is TestOutcome.PASSED)
