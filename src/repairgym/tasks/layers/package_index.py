"""Fetch pinned source distributions from the user's package index.

Reads the index named by the environment (``UV_DEFAULT_INDEX`` or ``PIP_INDEX_URL``, with ``PIP_EXTRA_INDEX_URL``), else
the public default of the `unearth` library. Makes one sdist file. Guarantees: the file has the pinned SHA-256; a
missing package and an unavailable index raise different errors.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

from repairgym.errors import IndexUnavailableError, PackageNotFoundError
from repairgym.records import Record

if TYPE_CHECKING:  # a fifth of a second to import, and most commands fetch nothing
    import httpx2
    from unearth import Link
    from unearth.fetchers import Fetcher

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
BACK_OFF_S = (0.5, 2.0, 6.0)
"""Waits between attempts, one per retry."""
NETWORK_TIMEOUT_S = 60.0
ResultT = TypeVar("ResultT")


class Sdist(Record):
    """A pinned source distribution."""

    name: str
    version: str
    sha256: str
    """SHA-256 (hex), of Debian's archive after ``debian-``; of an archive of npm its integrity (``sha512-...``)."""

    @property
    def key(self) -> str:
        """Name of its folder in the layer store."""
        return hashlib.sha256(self.sha256.encode()).hexdigest() if self.is_npm or self.is_debian else self.sha256

    @property
    def is_npm(self) -> bool:
        """True when it comes from an npm registry."""
        return self.sha256.startswith("sha512-")

    @property
    def is_debian(self) -> bool:
        """True when it is the upstream archive of a source package of Debian."""
        return self.sha256.startswith("debian-")


class IndexSettings(NamedTuple):
    """Indexes to query; an empty ``default`` stands for the public one."""

    default: str
    extra: tuple[str, ...]


def index_settings(environ: Mapping[str, str] = os.environ) -> IndexSettings:
    """Return the indexes that the user configured in the environment."""
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL") or ""
    return IndexSettings(default, tuple(environ.get("PIP_EXTRA_INDEX_URL", "").split()))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class SdistIndex(Protocol):
    """A server of sdists."""

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        """Return the file of ``sdist``, in ``folder`` or elsewhere on this machine.

        Raises:
            IndexUnavailableError: no answer after all attempts.
            PackageNotFoundError: not there, or with another hash.
        """
        ...


class PackageIndex:
    """A package index with the ordinary protocol."""

    def __init__(self, settings: IndexSettings | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """Query the indexes of ``settings`` (default: the environment's); ``sleep`` waits between attempts."""
        from unearth import PackageFinder
        from unearth.fetchers.sync import PyPIClient

        self._sleep = sleep
        self._known: dict[str, list[tuple[str, Link]]] = {}
        self._known_wheels: dict[str, dict[str, Link]] = {}
        settings = settings or index_settings()
        client = PyPIClient(timeout=NETWORK_TIMEOUT_S, event_hooks={"response": [_raise_when_not_served]})
        default = [settings.default] if settings.default else []
        self._finder = PackageFinder(cast("Fetcher", client), index_urls=default, no_binary=[":all:"])
        self._wheels = PackageFinder(cast("Fetcher", client), index_urls=default, only_binary=[":all:"])
        for url in settings.extra:
            self._finder.add_index_url(url)
            self._wheels.add_index_url(url)

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        """Download ``sdist`` into ``folder`` and verify its hash (see `SdistIndex.fetch`)."""
        path = self._persist(f"{sdist.name}=={sdist.version}", lambda: self._download(sdist, folder))
        digest = sha256_of(path)
        if digest != sdist.sha256:
            raise _wrong_hash(sdist, digest)
        return path

    def fetch_release(self, name: str, version: str, folder: Path) -> Path:
        """Download the source distribution of a release (empty version: the newest) into ``folder``, as it is there."""
        requirement = f"{name}=={version}" if version else name
        link = self._persist(requirement, lambda: self._find(requirement))
        folder.mkdir(parents=True, exist_ok=True)
        return self._persist(requirement, lambda: self._finder.download(link, folder))

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        """Return the sdists of all final releases of ``name``, newest first; one without a hash is left out."""
        pinned: dict[str, Sdist] = {}
        for version, link in self._listed(name):
            for digest in (link.hash_option or {}).get("sha256", ()):  # of JSON, or behind the address in HTML
                pinned.setdefault(version, Sdist(name=name, version=version, sha256=digest))
        if not pinned:
            raise PackageNotFoundError(
                f"the package index has no source distribution of {name} with a SHA-256; correct the name, or add its "
                "repository: repairgym tasks add --repository URL"
            )
        return tuple(pinned.values())

    def upload_times(self, name: str) -> dict[str, datetime]:
        """Return final version of ``name`` -> upload time of its sdist; empty where the index gives no times."""
        return {version: link.upload_time for version, link in self._listed(name) if link.upload_time}

    def _listed(self, name: str) -> list[tuple[str, Link]]:
        """Return version and link of the sdist of every final release, newest first; the index is asked once."""
        if name not in self._known:
            with warnings.catch_warnings():
                # Old releases name Python versions in a deprecated form.
                warnings.simplefilter("ignore", FutureWarning)
                packages = self._persist(
                    name, lambda: list(self._finder.find_matches(name, allow_yanked=False, allow_prereleases=False))
                )
            self._known[name] = [(p.version, p.link) for p in packages if p.version and not p.link.is_wheel]
        return self._known[name]

    def wheel_versions(self, name: str) -> tuple[str, ...]:
        """Return released versions of ``name`` with a wheel for this Python, newest first; none if it is unknown."""
        return tuple(self._wheel_links(name))

    def fetch_wheel(self, name: str, version: str, folder: Path) -> Path:
        """Download the wheel of a version for this Python into ``folder``, as it is there."""
        link = self._wheel_links(name).get(version)
        if link is None:
            raise PackageNotFoundError(f"the package index has no wheel of {name}=={version} for this Python")
        return self._persist(f"{name}=={version}", lambda: self._wheels.download(link, folder))

    def _wheel_links(self, name: str) -> dict[str, Link]:
        """Return version -> its best wheel; the index is asked once."""
        if name not in self._known_wheels:
            packages = self._persist(name, lambda: list(self._wheels.find_matches(name, allow_yanked=False)))
            links: dict[str, Link] = {}
            for package in packages:
                if package.link.is_wheel and package.version:
                    links.setdefault(package.version, package.link)
            self._known_wheels[name] = links
        return self._known_wheels[name]

    def _persist(self, what: str, attempt: Callable[[], ResultT]) -> ResultT:
        import httpx2

        for wait_s in (*BACK_OFF_S, None):
            try:
                return attempt()
            except httpx2.HTTPError as error:
                if wait_s is None:
                    raise IndexUnavailableError(
                        f"no package index answered for {what} ({error}); check the network, "
                        "or name your index in PIP_INDEX_URL"
                    ) from error
                self._sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _find(self, requirement: str) -> Link:
        with warnings.catch_warnings():
            # Old releases name Python versions in a deprecated form.
            warnings.simplefilter("ignore", FutureWarning)
            packages = list(self._finder.find_matches(requirement, allow_prereleases="==" in requirement))
        for package in packages:
            if not package.link.is_wheel:
                return package.link
        raise PackageNotFoundError(
            f"the package index has no source distribution of {requirement}; "
            "use an index that mirrors it, or leave the package out with packages=[...]"
        )

    def _download(self, sdist: Sdist, folder: Path) -> Path:
        from unearth import HashMismatchError, UnpackError

        listed = dict(reversed(self._known.get(sdist.name, ())))
        link = listed.get(sdist.version) or self._find(f"{sdist.name}=={sdist.version}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._finder.download(link, folder, hashes={"sha256": [sdist.sha256]})
        except HashMismatchError as error:
            raise _wrong_hash(sdist, "another digest") from error
        except UnpackError as error:
            text = f"the sdist of {sdist.name}=={sdist.version} cannot be fetched: {error}"
            raise PackageNotFoundError(text) from error


def _raise_when_not_served(response: httpx2.Response) -> None:
    import httpx2

    if response.status_code in TRANSIENT_STATUS:
        raise httpx2.HTTPStatusError(f"status {response.status_code}", request=response.request, response=response)


def _wrong_hash(sdist: Sdist, got: str) -> PackageNotFoundError:
    return PackageNotFoundError(
        f"the index serves {sdist.name}=={sdist.version} with SHA-256 {got}, the catalogue pins {sdist.sha256}; "
        "correct the entry, or use another index if this one does not mirror the original"
    )
