"""What a layer holds, written down when it was built: so that damage is found and named later.

Reads and makes files beside a layer::

    <kind>/<digest>/                  the layer
    <kind>/.<digest>.manifest.json    a :class:`Manifest`

Invariants: a manifest names every file, link and folder of its layer; a manifest that was changed itself is told apart
from a damaged layer by its own digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

from pydantic import ValidationError

from repairgym.records import Record

MANIFEST_VERSION = 1


class Manifest(Record):
    """The entries of one layer."""

    schema_version: int = MANIFEST_VERSION
    entries_digest: str
    """SHA-256 over the entries."""
    num_bytes: int
    """Of all files."""
    entries: dict[str, str]
    """Path -> ``folder``, ``link:TARGET`` or ``file:MODE:SHA-256`` (mode: the permission bits in octal)."""


def manifest_path(layer: Path) -> Path:
    """Where the manifest of ``layer`` lies."""
    return layer.with_name(f".{layer.name}.manifest.json")


def scan_layer(layer: Path) -> Manifest:
    """The manifest of what is in ``layer`` now; reads every byte.

    Raises:
        OSError: something in it cannot be read.
    """
    entries: dict[str, str] = {}
    num_bytes = 0
    for folder, folders, files in os.walk(layer):
        for name in sorted(folders + files):
            path = Path(folder, name)
            entries[str(path.relative_to(layer))], size = _describe(path)
            num_bytes += size
    return Manifest(entries_digest=_digest(entries), num_bytes=num_bytes, entries=dict(sorted(entries.items())))


def _describe(path: Path) -> tuple[str, int]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"link:{path.readlink()}", 0
    if stat.S_ISDIR(status.st_mode):
        return "folder", 0
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"file:{stat.S_IMODE(status.st_mode):o}:{digest}", status.st_size


def _digest(entries: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def write_manifest(layer: Path, final: Path) -> Manifest:
    """Write down what ``layer`` holds, for the place ``final`` that it will be moved to."""
    manifest = scan_layer(layer)
    target = manifest_path(final)
    temporary = target.with_suffix(".part")
    # Names that are no UTF-8 come as lone surrogates, which JSON can escape and UTF-8 cannot hold.
    temporary.write_text(json.dumps(manifest.model_dump()), encoding="ascii")
    temporary.replace(target)
    return manifest


def read_manifest(layer: Path) -> Manifest | None:
    """The manifest of ``layer``; None when there is none, or one that was changed."""
    try:
        manifest = Manifest.model_validate(json.loads(manifest_path(layer).read_text(encoding="ascii")))
    except (OSError, ValueError, ValidationError):
        return None
    return manifest if manifest.entries_digest == _digest(manifest.entries) else None


def find_damage(layer: Path) -> tuple[str, ...]:
    """What is wrong with ``layer``, one line per path; empty when it is as it was built.

    A layer without a manifest (built by an older version) cannot be checked and gives one line that says so.
    """
    manifest = read_manifest(layer)
    if manifest is None:
        is_there = manifest_path(layer).exists()
        return ("its manifest was changed" if is_there else "has no manifest: built by an older version",)
    try:
        actual = scan_layer(layer).entries
    except OSError as error:
        return (f"{error.filename}: {error.strerror}",)
    lines = []
    for path in sorted(manifest.entries.keys() | actual.keys()):
        expected, got = manifest.entries.get(path), actual.get(path)
        if expected != got:
            lines.append(f"{path}: {_explain(expected, got)}")
    return tuple(lines)


def _explain(expected: str | None, got: str | None) -> str:
    if expected is None:
        return "was added"
    if got is None:
        return "is missing"
    kinds = expected.partition(":")[0], got.partition(":")[0]
    if kinds[0] != kinds[1]:
        return f"was a {kinds[0]}, is a {kinds[1]}"
    if kinds[0] == "file" and expected.rpartition(":")[2] == got.rpartition(":")[2]:
        return f"has mode {got.split(':')[1]}, had {expected.split(':')[1]}"
    return "has other content" if kinds[0] == "file" else "points elsewhere"
