from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repairgym.errors import DiskFullError, InputError
from repairgym.tasks.layers import gc
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.metadata import METADATA_FOLDER
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore, cache_root, tree_digest


def test_tree_is_the_sdist_with_metadata(tinycalc: Package, layers: LayerStore) -> None:
    tree = layers.tree(tinycalc.sdist())
    assert tree.name == tree_digest(tinycalc.sdist())
    assert (tree / "src/tinycalc/numbers.py").is_file()
    found = importlib.metadata.distributions(path=[str(tree / METADATA_FOLDER)])
    assert [(d.name, d.version) for d in found] == [("tinycalc", "1.1.0")]


def test_a_built_layer_needs_no_index(tinycalc: Package, layers: LayerStore) -> None:
    tree = layers.tree(tinycalc.sdist())
    again = LayerStore(layers.root, index=None)
    assert again.tree(tinycalc.sdist()) == tree
    assert again.sdist(tinycalc.sdist()).name == "tinycalc-1.1.0.tar.gz"


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    started: list[int] = []
    gate = threading.Barrier(4)

    def build(place: Path) -> None:
        started.append(1)
        (place / "file").write_text("whole")

    def ask(_: int) -> str:
        gate.wait()
        return (LayerStore(tmp_path).build_once("trees", "digest", build) / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["whole"] * 4
    assert len(started) == 1


def test_a_half_built_layer_never_counts(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)

    def fail(place: Path) -> None:
        (place / "half").write_text("x")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.build_once("trees", "digest", fail)
    assert not store.has("trees", "digest")
    (tmp_path / "trees" / ".digest.building-killed").mkdir()
    store.build_once("trees", "digest", lambda place: (place / "whole").touch())
    assert [path.name for path in sorted((tmp_path / "trees").iterdir()) if path.is_dir()] == ["digest"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_says_so(tmp_path: Path, number: int) -> None:
    def fail(place: Path) -> None:
        raise OSError(number, "full")

    with pytest.raises(DiskFullError, match="no space"):
        LayerStore(tmp_path).build_once("trees", "digest", fail)


def pack_one(path: Path, name: str, content: bytes = b"x") -> Sdist:
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return Sdist(name="evil", version="1", sha256=sha256_of(path))


class OneFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.path


@pytest.mark.parametrize("name", ["../outside.py", "evil-1/../../outside.py"])
def test_archive_cannot_write_outside(tmp_path: Path, name: str) -> None:
    sdist = pack_one(tmp_path / "evil-1.tar.gz", name)
    store = LayerStore(tmp_path / "store", OneFile(tmp_path / "evil-1.tar.gz"))
    with pytest.raises(InputError, match="cannot be unpacked"):
        store.tree(sdist)
    assert not list(tmp_path.rglob("outside.py"))


def test_broken_archive(tmp_path: Path) -> None:
    (tmp_path / "evil-1.tar.gz").write_bytes(b"no archive")
    store = LayerStore(tmp_path / "store", OneFile(tmp_path / "evil-1.tar.gz"))
    with pytest.raises(InputError, match="delete it"):
        store.tree(Sdist(name="evil", version="1", sha256="0"))


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path / "cache"))
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("REPAIRGYM_CACHE")
    assert cache_root() == Path.home() / ".cache" / "repairgym"


@pytest.mark.parametrize("kind", ["environments", "agents"])
def test_an_environment_whose_interpreter_has_moved_is_built_again(tmp_path: Path, kind: str) -> None:
    store = LayerStore(tmp_path / "store")

    def build(place: Path) -> None:
        (place / "bin").mkdir()
        (place / "bin" / "python").symlink_to(interpreter)

    interpreter = tmp_path / "python-1"
    interpreter.touch()
    assert store.build_once(kind, "e", build) == store.find(kind, "e")
    interpreter.unlink()
    interpreter = tmp_path / "python-2"
    interpreter.touch()
    assert store.find(kind, "e") is None
    gc.let_go(store.root / kind / "e")
    # Each open of the file has a lock of its own, as in another process.
    with gc.use_path(store.root / kind / "e").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(InputError, match="another process uses it"):
            store.build_once(kind, "e", build)
    with store.holding(kind, "e"):
        assert (store.build_once(kind, "e", build) / "bin" / "python").readlink() == interpreter
    assert store.find(kind, "e") is not None
