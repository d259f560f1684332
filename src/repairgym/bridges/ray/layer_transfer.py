"""Layers and model folders on their way to a node: a tar stream in pieces, addressed by digest.

Reads folders of one machine; makes the same folders in the layer store of another. Invariants: what arrives has the
manifest (paths, modes, bytes) of what was sent, or there is no layer; a node unpacks a digest once, however many of
its workers ask; neither end holds a whole folder in memory.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairgym.errors import ClusterError
from repairgym.tasks.layers.inventory import Manifest, read_manifest, scan_layer
from repairgym.tasks.layers.store import LayerStore

PIECE_BYTES = 32 << 20
MODELS = "models"
"""Kind of the layers that hold a model folder; their name is the digest of their manifest."""


@dataclass(frozen=True)
class Parcel:
    """A folder that was sent."""

    kind: str
    """Kind of the layer, e.g. ``trees``."""
    digest: str
    """Name of the layer on every machine."""
    entries_digest: str
    """Of its manifest: what has to arrive."""
    num_bytes: int
    """Of all files."""
    pieces: tuple[Any, ...]
    """Object references, in order."""


def send_layer(layer: Path, put: Callable[[bytes], Any]) -> Parcel:
    """Hand a layer of the store to ``put``, piece by piece."""
    return _send(layer, layer.parent.name, layer.name, read_manifest(layer) or scan_layer(layer), put)


def send_model(folder: Path, put: Callable[[bytes], Any]) -> Parcel:
    """Hand a model folder to ``put``, piece by piece."""
    manifest = scan_layer(folder)
    return _send(folder, MODELS, manifest.entries_digest, manifest, put)


def _send(folder: Path, kind: str, digest: str, manifest: Manifest, put: Callable[[bytes], Any]) -> Parcel:
    pieces = tuple(put(piece) for piece in pack(folder))
    return Parcel(kind, digest, manifest.entries_digest, manifest.num_bytes, pieces)


def receive(parcel: Parcel, store: LayerStore, get: Callable[[Any], bytes]) -> Path:
    """The folder of ``parcel`` in ``store``, unpacked when it is missing.

    Raises:
        ClusterError: something else arrived.
        DiskFullError: no room for it.
    """

    def build(place: Path) -> None:
        unpack(map(get, parcel.pieces), place)
        arrived = scan_layer(place).entries_digest
        if arrived != parcel.entries_digest:
            raise ClusterError(
                f"{parcel.kind}/{parcel.digest} arrived as {arrived[:12]}, expected {parcel.entries_digest[:12]}: look "
                "at the store that it came from with `repairgym doctor --verify-layers`, and at the file system of the node"
            )

    return store.build_once(parcel.kind, parcel.digest, build)


def pack(folder: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """``folder`` as a tar stream in pieces of ``piece_bytes``; owners are left out, times are whole seconds."""
    waiting = bytearray()
    for block in _blocks(folder, piece_bytes):
        waiting += block
        while len(waiting) >= piece_bytes:
            yield bytes(waiting[:piece_bytes])
            del waiting[:piece_bytes]
    yield bytes(waiting)


def _blocks(folder: Path, max_bytes: int) -> Iterator[bytes]:
    for parent, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            path = Path(parent, name)
            info = _describe(path, str(path.relative_to(folder)))
            yield info.tobuf(tarfile.PAX_FORMAT)
            if info.isreg():
                with path.open("rb") as stream:
                    while piece := stream.read(max_bytes):
                        yield piece
                yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _describe(path: Path, name: str) -> tarfile.TarInfo:
    info, status = tarfile.TarInfo(name), path.lstat()
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = status.st_size
    return info


def unpack(pieces: Iterable[bytes], place: Path) -> None:
    """Write the files of `pack` below ``place``, with their modes."""
    stream: Any = _Stream(pieces)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as tar:
        tar.extractall(place, filter=_keep_mode)


def _keep_mode(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo:
    # The standard filter would take write permissions away, and the manifest holds them.
    return tarfile.tar_filter(member, place).replace(mode=member.mode, deep=False)


class _Stream:
    """Pieces as something to read from."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, num_bytes: int) -> bytes:
        found = bytearray()
        while len(found) < num_bytes:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            part = self._rest[: num_bytes - len(found)]
            found += part
            self._rest = self._rest[len(part) :]
        return bytes(found)
