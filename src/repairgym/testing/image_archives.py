"""Container images for tests, written by hand: tar archives of layers, archives of `docker save`, layout folders."""

import gzip
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repairgym.testing.registry import digest

Entry = tuple[tarfile.TarInfo, bytes]
Layer = tuple[bytes, bytes]
"""Blob and tar archive."""


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: Any) -> Entry:
    """Return an entry of an archive with further ``fields`` of its header."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def folder(name: str, mode: int = 0o755) -> Entry:
    """Return a folder."""
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> Entry:
    """Return a symbolic link."""
    return entry(name, kind=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> Entry:
    """Return a hard link."""
    return entry(name, kind=tarfile.LNKTYPE, linkname=target)


def archive(*entries: Entry) -> bytes:
    """Return the tar archive of ``entries``, whatever they say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def layer(*entries: Entry) -> Layer:
    """Return a layer compressed with gzip."""
    content = archive(*entries)
    return gzip.compress(content, mtime=0), content


def image_config(layers: Sequence[Layer], **fields: Any) -> bytes:
    """Return the configuration of an image."""
    diff_ids = [digest(content) for _, content in layers]
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}, **fields}).encode()


def write_layout(place: Path, layers: Sequence[Layer]) -> Path:
    """Write an OCI layout folder."""
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def add(content: bytes) -> dict[str, Any]:
        (blobs / digest(content)[7:]).write_bytes(content)
        return {"digest": digest(content), "size": len(content)}

    config, entries = add(image_config(layers)), [add(blob) for blob, _ in layers]
    manifest = add(json.dumps({"config": config, "layers": entries}).encode())
    (place / "index.json").write_text(json.dumps({"manifests": [manifest]}), encoding="utf-8")
    return place


def write_saved(path: Path, layers: Sequence[Layer], **fields: Any) -> Path:
    """Write an archive as `docker save` does."""
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode()
    contents = [entry(name, content) for name, (_, content) in zip(names, layers, strict=True)]
    config = entry("config.json", image_config(layers, **fields))
    path.write_bytes(archive(entry("manifest.json", manifest), config, *contents))
    return path
