"""Fresh pairs of releases: those whose newer release an index got within the last days.

Reads packages of a catalogue, and versions and dates of an index. Makes catalogue entries with these pairs only, in the
split ``test``, and dates their tasks. Guarantees: a pair is two adjacent final releases; a date is that of the index's
metadata, never of this machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from repairgym.errors import InputError, PackageNotFoundError, TaskError
from repairgym.records import Task
from repairgym.tasks.adding.adding import ReleaseIndex
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.suite import Resolver
from repairgym.tasks.adding.test_requirements import own_requirements
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import JavaPackage, NpmPackage, Package
from repairgym.tasks.layers.environments import lock_name, resolve_lock
from repairgym.tasks.layers.store import LayerStore

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class DatedIndex(ReleaseIndex, Protocol):
    """A server that also says when an sdist was uploaded."""

    def upload_times(self, name: str) -> dict[str, datetime]:
        """Return version -> upload time of its sdist; versions without one are left out."""
        ...


@dataclass(frozen=True)
class FreshPackage:
    """A package with its fresh pairs."""

    package: Package
    uploaded: dict[str, str]
    """Newer version of a pair -> its upload time (RFC 3339)."""
    lock: str = ""
    """Lock of its requirements; empty without a pair."""

    def write_lock(self, locks: Path) -> None:
        """Write the lock to the folder ``locks``."""
        locks.mkdir(parents=True, exist_ok=True)
        (locks / lock_name(self.package.requirements)).write_text(self.lock, encoding="utf-8")

    def text(self, command: str) -> str:
        """Return the catalogue entry."""
        days = ", ".join(f"{version} on {time[:10]}" for version, time in self.uploaded.items())
        comments = {"split": "held out: these releases are for evaluation", "releases": f"uploaded: {days}"}
        return render_entry(self.package, comments, (), command)


@dataclass(frozen=True)
class FreshFinder:
    """Finds fresh pairs in the time from ``first`` to ``last``."""

    index: DatedIndex
    store: LayerStore
    first: datetime
    last: datetime
    say: Say
    resolve: Resolver = resolve_lock

    def find_all(self, packages: Iterable[Package]) -> tuple[list[FreshPackage], dict[str, str]]:
        """Return the packages with fresh pairs, and name -> reason of those that could not be looked at.

        Raises:
            IndexUnavailableError: no index answers.
        """
        fresh_packages: list[FreshPackage] = []
        left_out: dict[str, str] = {}
        for package in packages:
            try:
                fresh = self.find(package)
            except (PackageNotFoundError, InputError, TaskError) as error:
                left_out[package.name] = str(error)
                self.say(f"leaves out {package.name}: {error}")
                continue
            self.say(f"{package.name}: {len(fresh.uploaded)} fresh pairs of releases")
            fresh_packages += [fresh] if fresh.uploaded else []
        return fresh_packages, left_out

    def find(self, package: Package) -> FreshPackage:
        """Return the fresh pairs of ``package``, oldest first."""
        if isinstance(package, NpmPackage | JavaPackage):
            raise TaskError(f"{package.name}: this entry is of no Python package, and fresh releases are of these only")
        sdists = self.index.sdists(package.name)
        times = self.index.upload_times(package.name)
        if not times:
            raise TaskError(f"{package.name}: the index gives no upload times; use one that does (PEP 700)")
        pairs = [(older, newer) for newer, older in pairwise(sdists) if self._is_fresh(times.get(newer.version))]
        uploaded = {newer.version: times[newer.version].strftime(TIME_FORMAT) for _, newer in reversed(pairs)}
        if not pairs:
            return FreshPackage(package, uploaded)
        newest = pairs[0][1]
        own = own_requirements(self.store.tree(newest))
        requirements = tuple(sorted({*package.requirements, *own}))
        fields = {
            "split": "test",
            "version": newest.version,
            "requirements": requirements,
            "releases": tuple((older.version, newer.version) for older, newer in reversed(pairs)),
            "aged": (),
            "removals": (),
            "sdists": {sdist.version: sdist.sha256 for pair in reversed(pairs) for sdist in pair},
        }
        return FreshPackage(package.model_copy(update=fields), uploaded, self.resolve(requirements))

    def _is_fresh(self, time: datetime | None) -> bool:
        return time is not None and self.first <= time <= self.last


def dated(tasks: Iterable[Task], fresh: Sequence[FreshPackage]) -> list[Task]:
    """Return ``tasks`` with the upload times of their releases."""
    times = {package.package.name: package.uploaded for package in fresh}
    return [
        task.model_copy(update={"created_at": times[task.provenance.package][task.provenance.version]})
        for task in tasks
    ]
