"""The pull of an image into the layer store, layer by layer.

Reads an :class:`~.sources.ImageSource`. Makes, in the store::

    image_layers/<diff id>/           one unpacked layer (:mod:`.unpacking`), shared by every image that has it
    image_layers/.<blob digest>.part  the bytes of a blob that have arrived; removed once the layer is there
    images/<image id>/image.json      an :class:`~.manifests.Image`

Guarantees: a layer that is here is not fetched again, by whatever image; a layer or an image appears only when it is
whole and its digests are right; what broke off continues at the next pull.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from repairgym.errors import IndexUnavailableError, InputError
from repairgym.records import Record
from repairgym.tasks.layers.images.manifests import Descriptor, Image, hex_of, this_platform
from repairgym.tasks.layers.images.sources import ImageSource, open_source
from repairgym.tasks.layers.images.unpacking import unpack_layer
from repairgym.tasks.layers.store import LayerStore

LAYERS, IMAGES = "image_layers", "images"
NUM_PARALLEL = 4
RECORD = "image.json"
_MIB = 1 << 20
Progress = Callable[[str, int, int, str], None]
"""Is told phase, done, total and a detail."""


class PulledLayer(Record):
    """One layer of a pulled image."""

    diff_id: str
    path: Path
    is_new: bool
    """False: it was in the store already."""


class Pull(Record):
    """Result of a pull."""

    image: Image
    layers: tuple[PulledLayer, ...]
    """The lowest first."""
    num_bytes_moved: int
    """Bytes of layers that came from the source now."""


class _StoppedError(Exception):
    """Another layer failed."""


class _Meter:
    """The bytes that have come from the source, of those that are known to come."""

    def __init__(self, num_bytes: int, progress: Progress) -> None:
        self._total, self._progress = num_bytes, progress
        self._start_s, self._lock = time.monotonic(), threading.Lock()
        self.num_bytes = 0
        self.is_stopped = False

    def note(self, num_bytes: int) -> None:
        """Count ``num_bytes``; `_StoppedError` when the pull is given up."""
        if self.is_stopped:
            raise _StoppedError
        with self._lock:
            self.num_bytes += num_bytes
            left_s = (time.monotonic() - self._start_s) * (self._total / max(self.num_bytes, 1) - 1)
            detail = f"MiB, {left_s:.0f} s left" if self.num_bytes < self._total else "MiB"
            self._progress("layers", self.num_bytes // _MIB, max(self._total // _MIB, self.num_bytes // _MIB), detail)


def pull(
    store: LayerStore,
    text: str,
    *,
    platform: str = "",
    num_parallel: int = NUM_PARALLEL,
    progress: Progress = lambda *_: None,
) -> Pull:
    """Bring the image ``text`` (see `open_source`) for ``platform`` (default: this machine's) into ``store``.

    Raises:
        InputError: the image is broken, unsafe, or not for the platform.
        RegistryUnavailableError: no registry answers, it rejects the request, or it lacks the image.
        DiskFullError: no room; whole layers and the bytes of half ones stay for the next pull.
    """
    with open_source(text) as source:
        if source.is_remote and not store.config.is_index_allowed:
            raise IndexUnavailableError(f"is_index_allowed = false forbids to fetch {text}; allow it, or pull a file")
        resolved = source.resolve(platform or this_platform())
        absent = {
            layer: blob
            for layer, blob in zip(resolved.image.layers, resolved.blobs, strict=True)
            if store.find(LAYERS, layer) is None
        }
        meter = _Meter(sum(blob.num_bytes for blob in absent.values()), progress)
        _fetch(store, source, absent, meter, num_parallel if source.is_remote else 1)
    return _finish(store, resolved.image, set(absent), meter.num_bytes)


def _fetch(
    store: LayerStore, source: ImageSource, absent: dict[str, Descriptor], meter: _Meter, num_parallel: int
) -> None:
    for part in (store.root / LAYERS).glob(".*.part"):
        # Another pull may finish with it meanwhile.
        with suppress(FileNotFoundError):
            if time.time() - part.lstat().st_mtime > store.config.min_idle_s:
                part.unlink()
    with ThreadPoolExecutor(num_parallel, thread_name_prefix="pull") as pool:
        futures = [pool.submit(_fetch_layer, store, source, layer, blob, meter) for layer, blob in absent.items()]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            # The first failure, or Ctrl-C, ends the others.
            meter.is_stopped = True
            pool.shutdown(wait=False, cancel_futures=True)


def _fetch_layer(store: LayerStore, source: ImageSource, layer: str, blob: Descriptor, meter: _Meter) -> None:
    digest = hex_of(blob.digest) if blob.digest else ""
    part = store.root / LAYERS / f".{digest or layer}.part"

    def build(place: Path) -> None:
        with source.blob(blob, part, meter.note) as stream:
            try:
                note = (lambda _: None) if source.is_remote else meter.note
                unpack_layer(stream, place, layer, digest, store.config.max_bytes, note)
            except InputError:
                # The next attempt begins at the start.
                part.unlink(missing_ok=True)
                raise
        part.unlink(missing_ok=True)

    store.build_once(LAYERS, layer, build)


def _finish(store: LayerStore, image: Image, new: set[str], num_bytes: int) -> Pull:

    def build(place: Path) -> None:
        (place / RECORD).write_text(image.model_dump_json(indent=2), encoding="utf-8")

    store.build_once(IMAGES, image.image_id, build)
    layers = tuple(
        PulledLayer(diff_id=layer, path=store.root / LAYERS / layer, is_new=layer in new) for layer in image.layers
    )
    return Pull(image=image, layers=layers, num_bytes_moved=num_bytes)
