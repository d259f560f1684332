"""Transfer of folders to a node: they arrive as sent, or not at all."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path

import pytest

from repairgym.bridges.ray.layer_transfer import MODELS, pack, receive, send_layer, send_model, unpack
from repairgym.errors import ClusterError
from repairgym.tasks.layers.inventory import find_damage, read_manifest, scan_layer
from repairgym.tasks.layers.store import LayerStore


def fill(place: Path) -> None:
    (place / "bin").mkdir()
    (place / "bin" / "tool").write_text("#!/bin/sh\n")
    (place / "bin" / "tool").chmod(0o755)
    (place / "bin" / "python").symlink_to("/usr/bin/no-such-python")
    (place / "shared").mkdir(mode=0o700)
    (place / "shared").chmod(0o775)
    (place / "shared" / "café\udcff.txt").write_bytes(b"a name that is no UTF-8")
    (place / "empty").touch()
    (place / "large").write_bytes(bytes(range(256)) * 1000)
    (place / ("deep/" * 30)).mkdir(parents=True)
    (place / ("deep/" * 30) / ("n" * 120)).write_text("a path longer than tar's own field")


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    return LayerStore(tmp_path / "driver").build_once("trees", "d" * 64, fill)


@pytest.mark.parametrize("piece_bytes", [7, 512, 100_000, 1 << 30])
def test_a_folder_arrives_as_it_was(layer: Path, tmp_path: Path, piece_bytes: int) -> None:
    pieces = list(pack(layer, piece_bytes))
    assert max(map(len, pieces)) <= piece_bytes
    (tmp_path / "there").mkdir()
    unpack(pieces, tmp_path / "there")
    assert scan_layer(tmp_path / "there") == scan_layer(layer)
    assert int((tmp_path / "there/bin/tool").stat().st_mtime) == int((layer / "bin/tool").stat().st_mtime)


def test_a_layer_arrives_once_under_its_digest(layer: Path, tmp_path: Path) -> None:
    sent: list[bytes] = []
    parcel = send_layer(layer, lambda piece: sent.append(piece) or len(sent) - 1)
    assert (parcel.kind, parcel.digest, parcel.num_bytes) == ("trees", "d" * 64, read_manifest(layer).num_bytes)
    node, fetched = LayerStore(tmp_path / "node"), []

    def get(index: int) -> bytes:
        fetched.append(index)
        return sent[index]

    threads = [threading.Thread(target=receive, args=(parcel, node, get)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == len(parcel.pieces)
    arrived = node.find("trees", "d" * 64)
    assert arrived is not None
    assert find_damage(arrived) == ()
    assert read_manifest(arrived).entries_digest == parcel.entries_digest


def test_other_bytes_leave_no_layer(layer: Path, tmp_path: Path) -> None:
    sent = list(pack(layer))
    parcel = send_layer(layer, lambda piece: piece)
    damaged = sent[0].replace(b"#!/bin/sh", b"#!/bin/no")
    node = LayerStore(tmp_path / "node")
    with pytest.raises(ClusterError, match=rf"trees/d{{64}} arrived as .*, expected {parcel.entries_digest[:12]}"):
        receive(parcel, node, lambda piece: damaged)
    assert not node.has("trees", "d" * 64)
    assert receive(parcel, node, lambda piece: piece).is_dir()


def test_a_layer_damaged_before_the_transfer_is_noticed(layer: Path, tmp_path: Path) -> None:
    (layer / "bin" / "tool").write_text("#!/bin/bash\n")
    parcel = send_layer(layer, lambda piece: piece)
    with pytest.raises(ClusterError, match="repairgym doctor --verify-layers"):
        receive(parcel, LayerStore(tmp_path / "node"), lambda piece: piece)


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../x"))
    (tmp_path / "place").mkdir()
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack([stream.getvalue()], tmp_path / "place")
    assert not (tmp_path / "x").exists()


def test_a_model_folder_is_addressed_by_its_content(tmp_path: Path) -> None:
    for name, weights in (("first", b"w"), ("second", b"w"), ("third", b"v")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    first, second, third = (send_model(tmp_path / name, lambda piece: piece) for name in ("first", "second", "third"))
    assert first.kind == MODELS
    assert first.digest == second.digest != third.digest
    node = LayerStore(tmp_path / "node")
    assert (receive(third, node, lambda piece: piece) / "model.safetensors").read_bytes() == b"v"
    assert node.has(MODELS, third.digest)
