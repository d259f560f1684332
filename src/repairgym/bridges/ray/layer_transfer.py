"""Transfer of layers, tokenizer and weights from the driver to the stores of nodes: tar streams in pieces, by digest.

Guarantees: a folder arrives with the manifest (paths, modes, bytes) that it was sent with, or not at all; each layer
and each version of the weights enters the object store once, and only the newest weights stay there; a node unpacks a
digest once for all its workers; neither end holds a whole folder in memory.
"""

import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairgym.errors import ClusterError, ConfigError
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.workers import WorkerSetup, WorkRequest
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.inventory import Manifest, read_manifest, scan_layer
from repairgym.tasks.layers.store import LayerStore

PIECE_BYTES = 32 << 20
MODELS = "models"
"""Kind of the layers that hold a model folder; their name is the digest of their manifest."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True)
class Parcel:
    """A folder that was sent."""

    kind: str
    """Kind of the layer, e.g. ``trees``."""
    digest: str
    """Name of the layer on every machine."""
    entries_digest: str
    """Expected digest of its manifest."""
    num_bytes: int
    pieces: tuple[Any, ...]
    """Object references, in order."""


@dataclass(frozen=True)
class LayerParcels:
    """The layers of one task."""

    environment: Parcel | None
    """None: the task runs in an image, which each node has to pull."""
    tree: Parcel


@dataclass(frozen=True)
class RemoteRequest:
    """A request with the layers and weights that the node may lack."""

    request: WorkRequest
    layers: Mapping[str, LayerParcels]
    """Task id -> its layers."""
    model: Parcel | None
    """Weights of the policy; None where it has none."""


def send_layer(layer: Path, put: Callable[[bytes], Any]) -> Parcel:
    """Pass a layer of the store to ``put``, piece by piece."""
    return _send(layer, layer.parent.name, layer.name, read_manifest(layer) or scan_layer(layer), put)


def send_model(folder: Path, put: Callable[[bytes], Any]) -> Parcel:
    """Pass a model folder to ``put``, piece by piece."""
    manifest = scan_layer(folder)
    return _send(folder, MODELS, manifest.entries_digest, manifest, put)


def _send(folder: Path, kind: str, digest: str, manifest: Manifest, put: Callable[[bytes], Any]) -> Parcel:
    pieces = tuple(put(piece) for piece in pack(folder))
    return Parcel(kind, digest, manifest.entries_digest, manifest.num_bytes, pieces)


def receive(parcel: Parcel, store: LayerStore, get: Callable[[Any], bytes]) -> Path:
    """Return the folder of ``parcel`` in ``store``, unpacked when missing; `ClusterError` for other files than sent."""

    def build(place: Path) -> None:
        unpack(map(get, parcel.pieces), place)
        arrived = scan_layer(place).entries_digest
        if arrived != parcel.entries_digest:
            raise ClusterError(
                f"{parcel.kind}/{parcel.digest} arrived as {arrived[:12]}, expected {parcel.entries_digest[:12]}: "
                "check the sender's store with `repairgym doctor --verify-layers`, and the file system of the node"
            )

    return store.build_once(parcel.kind, parcel.digest, build)


def pack(folder: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield ``folder`` as a tar stream in pieces of ``piece_bytes``; owners are left out, times are whole seconds."""
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
    """Pieces as a readable stream; a read may return less than it is asked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = map(io.BytesIO, pieces)
        self._piece = io.BytesIO()

    def read(self, num_bytes: int) -> bytes:
        while not (data := self._piece.read(num_bytes)):
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._piece = piece
        return data


class Broadcast:
    """The folders in the object store, by digest; ``put`` stores an object there and returns its reference."""

    def __init__(self, put: Any, setup: WorkerSetup) -> None:
        self._put = put
        self._setup = setup
        self._store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
        self._layers: dict[Path, Parcel] = {}
        self._tasks: dict[str, LayerParcels] = {}
        self._model: tuple[tuple[str, int], Parcel] | None = None

    def tokenizer(self) -> Parcel:
        """Send the tokenizer's folder without weights."""
        with tempfile.TemporaryDirectory(prefix="repairgym-tokenizer-") as folder:
            for path in Path(self._setup.tokenizer_folder).iterdir():
                if path.is_file() and path.suffix not in _WEIGHTS:
                    shutil.copy(path, folder)
            return send_model(Path(folder), self._put)

    def prepare(self, request: WorkRequest) -> RemoteRequest:
        """Return ``request`` with its weights and its layers, built here when missing; raises as `task_layers`."""
        layers = {task_id: self._of_task(task) for task_id, task in request.tasks.items()}
        return RemoteRequest(request, layers, self._weights(request.policy))

    def _of_task(self, task: Task) -> LayerParcels:
        if task.id not in self._tasks:
            layers = task_layers(task, self._store)
            environment = None if layers.root else self._layer(layers.environment)
            self._tasks[task.id] = LayerParcels(environment, self._layer(layers.tree))
        return self._tasks[task.id]

    def _layer(self, layer: Path) -> Parcel:
        if layer not in self._layers:
            self._layers[layer] = send_layer(layer, self._put)
        return self._layers[layer]

    def _weights(self, policy: PolicyRef) -> Parcel | None:
        if policy.router is not None:
            raise ConfigError("a router's models are not sent to other nodes; leave cluster.address out")
        if not policy.folder:
            return None
        key = policy.folder, policy.version
        if self._model is None or self._model[0] != key:
            # The previous version's parcel is dropped, which frees its room in the object store.
            self._model = key, send_model(Path(policy.folder), self._put)
        return self._model[1]
