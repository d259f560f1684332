"""Use and removal of layers: record uses, list layers by last use, and remove the longest unused.

Reads and makes, next to each layer, the file ``.<digest>.used``: its text is the size of the layer in bytes, its
modification time the last use, and every process that uses the layer holds a shared lock on it until it ends.
Guarantees: a layer in use by a live process is never removed; a layer under removal is never handed out (a process that
needs it waits and builds it again).
"""

import errno
import fcntl
import os
import resource
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import RepairGymError
from repairgym.records import Record
from repairgym.tasks.layers.inventory import manifest_path

KINDS = (
    "sdists",
    "trees",
    "environments",
    "toolchains",
    "bytecode",
    "repositories",
    "models",
    "replays",
    "recordings",
    "images",
    "image_layers",
    "wheels",
    "trials",
    "wheelhouses",
    "agents",
)
_NUM_FILES = 1 << 16
"""More take time: old kernels have no call that closes all descriptors of a child at once."""
_held: dict[Path, int] = {}
_num_holders: Counter[Path] = Counter()
_holding = threading.Lock()


class LayerUse(Record):
    """One layer of a store."""

    path: Path
    num_bytes: int
    last_use_s: float
    """Unix time."""


class Collection(Record):
    """Result of a collection."""

    num_bytes_before: int
    num_bytes_after: int
    removed: tuple[LayerUse, ...] = ()
    num_in_use: int = 0
    """Layers that stayed because a process uses them or another user owns them."""


def use_path(layer: Path) -> Path:
    """Return the file that records the last use of ``layer``."""
    return layer.with_name(f".{layer.name}.used")


def mark_used(layer: Path, num_bytes: int | None = None) -> None:
    """Hold ``layer`` for the rest of this process; wait while another process removes it.

    ``num_bytes`` is recorded as its size. In a store that cannot be written nothing is removed, and nothing is done.

    Raises:
        RepairGymError: this process or machine can open no more files, so that another process could remove the layer.
    """
    _allow_many_files()
    path = use_path(layer)
    with _holding:
        try:
            if path not in _held or not _is_same_file(_held[path], path):
                _held[path] = _lock(path, fcntl.LOCK_SH)
            os.utime(_held[path])
            if num_bytes is not None:
                os.pwrite(_held[path], str(num_bytes).encode(), 0)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise RepairGymError(
                    f"{layer} cannot be kept: too many files are open, and each layer in use is one; raise the limit "
                    "(ulimit -Hn) or give the tasks to more processes"
                ) from error
            return


@cache
def _allow_many_files() -> None:
    """Raise this process's limit of open files: one is open per layer, for all tasks of a build."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _NUM_FILES if hard == resource.RLIM_INFINITY else min(hard, _NUM_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _lock(path: Path, kind: int) -> int:
    """Return a descriptor of ``path`` that holds the lock; with ``LOCK_NB`` BlockingIOError if another holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, kind)
        except OSError:
            os.close(fd)
            raise
        if _is_same_file(fd, path):
            return fd
        # Removed with the layer between opening and locking.
        os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def list_layers(root: Path) -> list[LayerUse]:
    """Return every layer of the store at ``root``, the longest unused first."""
    layers: list[LayerUse] = []
    for path in (path for kind in KINDS for path in (root / kind).glob("[!.]*") if path.is_dir()):
        # Another process may remove it meanwhile.
        with suppress(FileNotFoundError):
            layers.append(describe_layer(path))
    return sorted(layers, key=lambda layer: (layer.last_use_s, str(layer.path)))


def describe_layer(layer: Path) -> LayerUse:
    """Return size and last use of ``layer``, or FileNotFoundError; an unrecorded size is measured and recorded."""
    last_use_s = _last_use_s(layer)
    try:
        num_bytes = int(use_path(layer).read_text())
    except (OSError, ValueError):
        num_bytes = sum(Path(folder, name).lstat().st_size for folder, _, names in os.walk(layer) for name in names)
        with suppress(OSError):
            # Stored, because measuring reads every folder of the layer.
            use_path(layer).write_text(str(num_bytes))
            os.utime(use_path(layer), (last_use_s, last_use_s))
    return LayerUse(path=layer, num_bytes=num_bytes, last_use_s=last_use_s)


def _last_use_s(layer: Path) -> float:
    # Layers of older versions have only the lock of their build.
    for mark in (use_path(layer), layer.with_name(f".{layer.name}.lock")):
        with suppress(FileNotFoundError):
            return mark.stat().st_mtime
    return layer.stat().st_mtime


def remove_leftovers(root: Path) -> None:
    """Remove what killed builds and removals left in the store at ``root``; it is no layer, so nothing else finds it.

    A folder of a build that runs stays: its process holds the lock of the layer. A removal that runs needs no lock:
    nobody reads what it renamed, so that two may remove it.
    """
    for kind in KINDS:
        for place in (root / kind).glob(".*"):
            name, building, _ = place.name.removeprefix(".").rpartition(".building-")
            is_removal = ".removing-" in place.name
            if not (building or is_removal) or not place.is_dir():
                continue
            try:
                fd = None if is_removal else _lock(place.with_name(f".{name}.lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            try:
                shutil.rmtree(place, ignore_errors=True)
            finally:
                if fd is not None:
                    os.close(fd)


def collect(root: Path, config: LayersConfig, now_s: float | None = None) -> Collection:
    """Remove the longest unused layers until the store is within ``config.max_bytes``."""
    now_s = time.time() if now_s is None else now_s
    remove_leftovers(root)
    layers = list_layers(root)
    before = after = sum(layer.num_bytes for layer in layers)
    removed: list[LayerUse] = []
    num_in_use = 0
    for layer in layers:
        if after <= config.max_bytes or now_s - layer.last_use_s < config.min_idle_s:
            break
        with _alone(layer.path) as is_free:
            if not is_free:
                num_in_use += 1
                continue
            try:
                remove_layer(layer.path)
            except OSError:
                # Another user owns it and can collect it.
                num_in_use += 1
                continue
        removed.append(layer)
        after -= layer.num_bytes
    return Collection(num_bytes_before=before, num_bytes_after=after, removed=tuple(removed), num_in_use=num_in_use)


@contextmanager
def _alone(layer: Path) -> Iterator[bool]:
    """Yield True if no other process uses ``layer`` meanwhile, False otherwise."""
    with _holding:
        is_ours = use_path(layer) in _held
    try:
        fd = None if is_ours else _lock(use_path(layer), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fd = None
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def note_use(layer: Path) -> None:
    """Record a use of ``layer`` that is over."""
    with suppress(OSError):
        os.utime(use_path(layer))


def let_go(layer: Path) -> None:
    """End this process's use of ``layer``; it stays in the store."""
    with _holding:
        if (fd := _held.pop(use_path(layer), None)) is not None:
            os.close(fd)


@contextmanager
def holding(layer: Path) -> Iterator[None]:
    """Keep ``layer``, which need not be built yet, from a `release` by another part of this process."""
    path = use_path(layer)
    with _holding:
        _num_holders[path] += 1
    try:
        yield
    finally:
        with _holding:
            _num_holders[path] -= 1


def release(layer: Path) -> None:
    """End this process's use of ``layer`` and remove it, unless a part of it is `holding` it or another process is."""
    with _holding:
        if _num_holders[use_path(layer)]:
            return
    let_go(layer)
    with _alone(layer) as is_free:
        if is_free and layer.is_dir():
            remove_layer(layer)


def remove_broken(layer: Path) -> bool:
    """Remove ``layer``, which does not work on this machine; False where another process uses it, or may remove it."""
    let_go(layer)
    with _alone(layer) as is_free:
        if is_free and layer.is_dir():
            with suppress(OSError):
                remove_layer(layer)
    return not layer.is_dir()


def remove_layer(layer: Path) -> None:
    """Remove ``layer`` and the files next to it; the caller ensures that nobody uses it."""
    doomed = layer.with_name(f".{layer.name}.removing-{os.getpid()}")
    # Of a killed process with the same id, as in a container that starts again.
    shutil.rmtree(doomed, ignore_errors=True)
    layer.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    for path in (manifest_path(layer), use_path(layer)):
        path.unlink(missing_ok=True)
