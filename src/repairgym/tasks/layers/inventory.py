"""Layer manifests: the content of a layer at its build, so that damage is found and named later.

Reads and makes files next to a layer::

    <kind>/<digest>/                  the layer
    <kind>/.<digest>.manifest.json    a :class:`Manifest`

Guarantees: a manifest names every file, link and folder of its layer; its own digest distinguishes a changed manifest
from a damaged layer.
"""

import hashlib
import json
import os
import stat
from pathlib import Path

from pydantic import ValidationError

from repairgym.records import Record


class Manifest(Record):
    """The entries of one layer."""

    schema_version: int = 1
    entries_digest: str
    """SHA-256 over the entries."""
    num_bytes: int
    """Of all files."""
    entries: dict[str, str]
    """Path -> ``folder``, ``whiteout``, ``link:TARGET`` or ``file:MODE:SHA-256`` (permission bits in octal)."""


def manifest_path(layer: Path) -> Path:
    """Return the place of the manifest of ``layer``."""
    return layer.with_name(f".{layer.name}.manifest.json")


def scan_layer(layer: Path) -> Manifest:
    """Return the manifest of the present content of ``layer``; read every byte."""
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
    if stat.S_ISCHR(status.st_mode):
        # The one kind of device that a layer of an image has.
        return "whiteout", 0
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"file:{stat.S_IMODE(status.st_mode):o}:{digest}", status.st_size


def _digest(entries: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def write_manifest(layer: Path, final: Path) -> Manifest:
    """Write the manifest of ``layer`` for its later place ``final``."""
    manifest = scan_layer(layer)
    target = manifest_path(final)
    temporary = target.with_suffix(".part")
    # Names that are no UTF-8 are lone surrogates: JSON can escape them, UTF-8 cannot hold them.
    temporary.write_text(json.dumps(manifest.model_dump()), encoding="ascii")
    temporary.replace(target)
    return manifest


def read_manifest(layer: Path) -> Manifest | None:
    """Return the manifest of ``layer``; None for a missing or changed one."""
    try:
        manifest = Manifest.model_validate(json.loads(manifest_path(layer).read_text(encoding="ascii")))
    except (OSError, ValueError, ValidationError):
        return None
    return manifest if manifest.entries_digest == _digest(manifest.entries) else None


def find_damage(layer: Path) -> tuple[str, ...]:
    """Return the damage to ``layer``, one line per path; one line for a layer without a manifest; empty for none."""
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
