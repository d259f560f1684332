"""The npm registry of the user, through the program `npm` with the user's settings.

Reads names and versions. Makes archives. Guarantees: an archive has the pinned integrity, and no script of a package
runs. A registry that does not answer raises `IndexUnavailableError`, what it does not have `PackageNotFoundError`.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repairgym.errors import IndexUnavailableError, PackageNotFoundError
from repairgym.tasks.layers.package_index import Sdist

_TIMEOUT_S = 600.0
_NUMBERS = re.compile(r"\d+\.\d+\.\d+")
"""Versions of final releases."""
_UNKNOWN = ("E404", "ETARGET", "ENOVERSIONS", "ERESOLVE", "EINVALIDTAGNAME", "EINTEGRITY")
"""Errors of npm that say that what was asked for is not there, or is something else."""


def npm(arguments: Sequence[str], cwd: Path) -> str:
    """Return the output of an npm command.

    Raises:
        PackageNotFoundError: the registry has no such package, or another one under its name.
        IndexUnavailableError: npm failed otherwise, or is not installed.
    """
    program = shutil.which("npm")
    if program is None:
        raise IndexUnavailableError("there is no npm here, which builds of JavaScript tasks need; install it")
    environment = {**os.environ, "npm_config_update_notifier": "false", "NO_COLOR": "1"}
    done = subprocess.run(
        [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if done.returncode == 0:
        return done.stdout
    detail = " ".join((done.stderr or done.stdout).split())[:600]
    is_unknown = any(code in detail for code in _UNKNOWN)
    kind = PackageNotFoundError if is_unknown else IndexUnavailableError
    raise kind(f"npm {' '.join(arguments[:2])} failed: {detail}")


def integrity_of(path: Path) -> str:
    """Return the integrity of a file as npm writes it."""
    with path.open("rb") as stream:
        return "sha512-" + base64.b64encode(hashlib.file_digest(stream, "sha512").digest()).decode()


def _archive_name(packed: dict[str, Any]) -> str:
    """Return the name of an archive that npm told of, as npm writes the file."""
    return str(packed["filename"]).replace("@", "").replace("/", "-")


def integrity_of_bytes(content: bytes) -> str:
    """Return the integrity of ``content`` as npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


class NpmRegistry:
    """The user's npm registry; an index of archives (see `SdistIndex`)."""

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        """Download the archive of ``sdist`` into ``folder`` and verify its integrity (see `SdistIndex.fetch`)."""
        path = self.fetch_release(sdist.name, sdist.version, folder)
        if (got := integrity_of(path)) != sdist.sha256:
            raise PackageNotFoundError(
                f"the registry serves {sdist.name}@{sdist.version} with integrity {got}, the catalogue pins "
                f"{sdist.sha256}; correct the entry, or use a registry that mirrors the original"
            )
        return path

    def fetch_release(self, name: str, version: str, folder: Path) -> Path:
        """Download the archive of a release into ``folder``, as it is there."""
        folder.mkdir(parents=True, exist_ok=True)
        text = npm(["pack", f"{name}@{version}", "--json", "--silent", "--ignore-scripts"], folder)
        return folder / _archive_name(json.loads(text)[0])

    def fetch_all(self, sdists: Sequence[Sdist], folder: Path) -> dict[Sdist, Path]:
        """Download the archives of ``sdists`` with one start of npm; those with another integrity are left out."""
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{sdist.name}@{sdist.version}" for sdist in sdists]
        made = json.loads(npm(["pack", *names, "--json", "--silent", "--ignore-scripts"], folder))
        paths = {str(item["id"]): folder / _archive_name(item) for item in made}
        fetched = {sdist: paths[name] for sdist, name in zip(sdists, names, strict=True) if name in paths}
        return {sdist: path for sdist, path in fetched.items() if integrity_of(path) == sdist.sha256}

    def releases(self, name: str) -> tuple[Sdist, ...]:
        """Return the final releases of ``name`` with their integrity, newest first; PackageNotFoundError for none."""
        told = json.loads(npm(["view", f"{name}@>=0.0.0", "version", "dist.integrity", "--json"], Path.cwd()) or "[]")
        pins = [told] if isinstance(told, dict) else told
        final = [pin for pin in pins if str(pin.get("dist.integrity", "")).startswith("sha512-")]
        sdists = [Sdist(name=name, version=pin["version"], sha256=pin["dist.integrity"]) for pin in final]
        sdists = [sdist for sdist in sdists if _NUMBERS.fullmatch(sdist.version)]
        if not sdists:
            raise PackageNotFoundError(f"the npm registry has no release of {name} with an integrity; correct the name")
        return tuple(sorted(sdists, key=lambda sdist: tuple(map(int, sdist.version.split("."))), reverse=True))
