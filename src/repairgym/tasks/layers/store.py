"""The content-addressed layer store: sdists, unpacked trees and environments, each built once.

Reads pinned sdists and locks. Makes folders under ``$REPAIRGYM_CACHE`` (default ``~/.cache/repairgym``)::

    sdists/<sha256>/NAME-VERSION.tar.gz
    trees/<digest>/            the unpacked sdist with `.dist/NAME-VERSION.dist-info/METADATA` added
    environments/<digest>/     a relocatable virtual environment (see `environments`)
    wheelhouses/<digest>/      one distribution, for environments with a wheelhouse (see `environments`)
    toolchains/<digest>/       node, for environments with a lock of npm (`npm_locks`); JDK and Maven (`debian`)
    wheels/<digest>/           the wheel of a release that has none (`imported/environments`)
    models/<digest>/           weights or a tokenizer that a cluster's driver sent (`bridges/ray`)
    trials/<digest>/           one run of a suite by `repairgym tasks add` (`adding/trial`)
    agents/<digest>/           a command line agent of others (`agents`)
    images/, image_layers/     container images and their unpacked layers (`images/pull`)

Guarantees: a layer appears under its name only when it is whole; concurrent processes build it once (file lock); a
built layer never changes and needs no network; only building may use one (`repairgym.config.sandbox`). Next to each
layer lie its manifest (`inventory`) and its last use (`gc`). Building raises `IndexUnavailableError` (an sdist is not
here and no index answers), `PackageNotFoundError` (no index has it), `InputError` (a broken or unsafe archive) or
`DiskFullError`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import IndexUnavailableError, InputError, disk_full_as_repairgym_error
from repairgym.tasks.layers import gc
from repairgym.tasks.layers.debian import DebianArchive
from repairgym.tasks.layers.inventory import write_manifest
from repairgym.tasks.layers.metadata import write_metadata
from repairgym.tasks.layers.npm_registry import NpmRegistry
from repairgym.tasks.layers.package_index import PackageIndex, Sdist, SdistIndex, sha256_of

TREE_FORMAT = 1
"""Part of each tree digest; grows when unpacking changes what a tree holds."""


def cache_root() -> Path:
    """Return the folder of the layer store: ``$REPAIRGYM_CACHE`` or ``~/.cache/repairgym``."""
    return Path(os.environ.get("REPAIRGYM_CACHE") or Path.home() / ".cache" / "repairgym").expanduser().resolve()


def tree_digest(sdist: Sdist) -> str:
    """Return the content address of the tree of ``sdist``."""
    return hashlib.sha256(f"tree:{TREE_FORMAT}:{sdist.sha256}".encode()).hexdigest()


def tree_with_files(store: LayerStore, sdist: Sdist, files: Mapping[str, str]) -> Path:
    """Return a separate layer: the tree of ``sdist`` with additional ``files`` (relative path -> text)."""
    origin = store.tree(sdist)
    content = json.dumps(dict(files), sort_keys=True)
    digest = hashlib.sha256(f"{origin.name}:files:{content}".encode()).hexdigest()

    def build(place: Path) -> None:
        shutil.copytree(origin, place, dirs_exist_ok=True, symlinks=True)
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, encoding="utf-8")

    return store.build_once("trees", digest, build)


class LayerStore:
    """Layers on this machine's disk."""

    def __init__(
        self, root: Path | None = None, index: SdistIndex | None = None, config: LayersConfig | None = None
    ) -> None:
        """Use ``root`` (default: `cache_root`); fetch missing sdists from ``index`` (default: the user's)."""
        self.root = cache_root() if root is None else root
        self.config = config or LayersConfig()
        self._index = index

    def sdist(self, sdist: Sdist) -> Path:
        """Return the sdist file; fetch a missing one."""
        folder = self.build_once("sdists", sdist.key, lambda place: self._fetch(sdist, place))
        return next(path for path in folder.iterdir() if path.is_file())

    def tree(self, sdist: Sdist) -> Path:
        """Return the unpacked tree of ``sdist``."""
        return self.build_once("trees", tree_digest(sdist), lambda place: _unpack(self.sdist(sdist), sdist, place))

    def tree_of_file(self, sdist: Sdist, archive: Path) -> Path:
        """Return the unpacked tree of ``sdist``, whose file ``archive`` need not be in the store."""
        return self.build_once("trees", tree_digest(sdist), lambda place: _unpack(archive, sdist, place))

    def has(self, kind: str, digest: str) -> bool:
        """Return True when the layer is built."""
        return (self.root / kind / digest).is_dir()

    def find(self, kind: str, digest: str) -> Path | None:
        """Return the layer ``kind/digest`` if it is built and works here, and mark it as used by this process."""
        layer = self.root / kind / digest
        # An empty digest would be the folder of all layers of the kind.
        return layer if digest and self._is_usable(layer) else None

    def _is_usable(self, layer: Path) -> bool:
        """Return True if ``layer`` exists and works here; then it stays until this process ends."""
        if not layer.is_dir() or _has_lost_interpreter(layer):
            return False
        # Marked before the second check: a removal has ended by then.
        gc.mark_used(layer)
        return layer.is_dir()

    def holding(self, kind: str, digest: str) -> AbstractContextManager[None]:
        """Keep a layer from a `release` by another part of this process."""
        return gc.holding(self.root / kind / digest)

    def release(self, kind: str, digest: str) -> None:
        """End this process's use of a layer that nobody needs again; the last user removes it."""
        gc.release(self.root / kind / digest)

    def build_once(self, kind: str, digest: str, build: Callable[[Path], None]) -> Path:
        """Return the layer ``kind/digest``; ``build`` fills the folder of a missing one.

        An environment whose interpreter is no longer on this machine is built again; InputError where another process
        uses it.
        """
        final = self.root / kind / digest
        if self._is_usable(final):
            return final
        with disk_full_as_repairgym_error(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            with _locked(final.with_name(f".{digest}.lock")):
                if not self._is_usable(final):
                    num_bytes = _build_and_rename(final, build)
                    gc.mark_used(final, num_bytes)
        # Keep a file that cannot be fetched again.
        if self.config.is_index_allowed:
            gc.collect(self.root, self.config)
        return final

    def _fetch(self, sdist: Sdist, place: Path) -> None:
        if self._index is None and not self.config.is_index_allowed:
            raise IndexUnavailableError(
                f"the sdist of {sdist.name}=={sdist.version} is not on this machine, and is_index_allowed = false "
                "forbids to fetch it; allow it, or copy the layer store of a machine that has it"
            )
        path = self._index_of(sdist).fetch(sdist, place)
        if path.parent != place:
            shutil.copyfile(path, place / path.name)

    def _index_of(self, sdist: Sdist) -> SdistIndex:
        if self._index is None and sdist.is_npm:
            return NpmRegistry()
        if self._index is None and sdist.is_debian:
            return DebianArchive()
        self._index = self._index or PackageIndex()
        return self._index


def _has_lost_interpreter(layer: Path) -> bool:
    """Return True where the interpreter of an environment was removed or has moved, or is that of another machine."""
    python = layer / "bin" / "python"
    return layer.parent.name in ("environments", "agents") and python.is_symlink() and not python.exists()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _build_and_rename(final: Path, build: Callable[[Path], None]) -> int:
    """Build the layer and return its bytes."""
    prefix = f".{final.name}.building-"
    for stale in (*final.parent.glob(f"{prefix}*"), *final.parent.glob(f".{final.name}.removing-*")):
        shutil.rmtree(stale, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        place.chmod(0o755)
        build(place)
        if final.is_dir():
            _make_room(final)
        num_bytes = write_manifest(place, final).num_bytes
        place.rename(final)
        return num_bytes
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _make_room(layer: Path) -> None:
    """Remove an environment without its interpreter."""
    if not gc.remove_broken(layer):
        raise InputError(
            f"the interpreter of {layer} ({(layer / 'bin' / 'python').readlink()}) is not on this machine, and another "
            "process uses it or it cannot be removed; give each machine or image a layer store of its own "
            "(REPAIRGYM_CACHE)"
        )


def _unpack(archive: Path, sdist: Sdist, place: Path) -> None:
    inner = place / ".unpacking"
    inner.mkdir()
    try:
        _extract(archive, inner)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise InputError(
            f"{archive} (SHA-256 {sha256_of(archive)}) cannot be unpacked: {error}; delete it to have it fetched again"
        ) from error
    entries = list(inner.iterdir())
    top = entries[0] if len(entries) == 1 and entries[0].is_dir() else inner
    for path in list(top.iterdir()):
        path.rename(place / path.name)
    shutil.rmtree(inner)
    metadata = place / "PKG-INFO"
    text = metadata.read_text(encoding="utf-8", errors="replace") if metadata.is_file() else ""
    write_metadata(place, sdist.name, sdist.version, text)


def _extract(archive: Path, place: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if name.startswith("/") or ".." in Path(name).parts:
                    raise ValueError(f"unsafe member {name!r}")
            zipped.extractall(place)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
