"""Layers are unpacked as overlayfs takes them, and nothing that an archive says leads out of its folder."""

import hashlib
import io
import os
import random
import stat
import tarfile
import zlib

import pytest
import zstandard

from repairgym.errors import InputError
from repairgym.tasks.layers.images.unpacking import unpack_layer
from repairgym.testing.image_archives import archive, entry, folder, hard_link, layer, link

MAX_BYTES = 1 << 20


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def unpack(place, blob, content, *, diff_id="", expected="", max_bytes=MAX_BYTES):
    place.mkdir(exist_ok=True)
    stream = io.BufferedReader(io.BytesIO(blob))
    unpack_layer(stream, place, diff_id or sha256(content), expected or sha256(blob), max_bytes, lambda _: None)
    return place


def unpack_entries(place, *entries, **options):
    content = archive(*entries)
    return unpack(place, content, content, **options)


def test_files_keep_their_content_mode_and_time_but_no_privilege(tmp_path):
    place = unpack_entries(
        tmp_path / "a",
        folder("bin", 0o2751),
        entry(
            "bin/tool", b"x", mode=0o4711, mtime=1_500_000_000, uid=7, gid=8, pax_headers={"SCHILY.xattr.user.a": "b"}
        ),
        entry("bin/secret", b"s", mode=0),
        hard_link("bin/other", "./bin/tool"),
        link("bin/sh", "/bin/../../tool"),
        entry("./etc/made/parents", b"y"),
    )
    status = (place / "bin/tool").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime, status.st_uid) == (0o711, 1_500_000_000, os.getuid())
    assert os.listxattr(place / "bin/tool") == []
    assert stat.S_IMODE((place / "bin").stat().st_mode) == 0o751
    assert (place / "bin/secret").read_bytes() == b"s"
    assert (place / "bin/other").samefile(place / "bin/tool")
    assert os.readlink(place / "bin/sh") == "/bin/../../tool"
    assert (place / "etc/made/parents").read_bytes() == b"y"


def test_what_an_image_deletes_becomes_whiteouts_and_opaque_folders(tmp_path):
    place = unpack_entries(
        tmp_path / "a",
        entry("a/.wh.gone"),
        folder("b"),
        entry("b/.wh..wh..opq"),
        entry("c/kept", b"1"),
        entry(".wh.c"),
        entry(".wh.d"),
        folder("d"),
        entry(".wh.e"),
        entry("e", b"2"),
        entry(".wh..wh.plnk"),
    )
    assert stat.S_ISCHR((place / "a/gone").lstat().st_mode)
    assert (place / "a/gone").lstat().st_rdev == 0
    for name in "bcd":
        assert os.getxattr(place / name, "user.overlay.opaque") == b"y"
    assert (place / "e").read_bytes() == b"2"
    assert sorted(path.name for path in place.iterdir()) == ["a", "b", "c", "d", "e"]


def test_devices_and_pipes_are_skipped_and_later_entries_replace_earlier_ones(tmp_path):
    place = unpack_entries(
        tmp_path / "a",
        entry("dev/null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("dev/sda", kind=tarfile.BLKTYPE, devmajor=8),
        entry("pipe", kind=tarfile.FIFOTYPE),
        entry("x/y/z", b"1"),
        entry("x", b"2"),
        link("l", "x"),
        folder("l"),
    )
    assert list((place / "dev").iterdir()) == []
    assert not (place / "pipe").exists()
    assert (place / "x").read_bytes() == b"2"
    assert stat.S_ISDIR((place / "l").lstat().st_mode)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("../out", b"x")], "expected a path below the layer"),
        ([entry("a/../../out", b"x")], "expected a path below the layer"),
        ([entry("/etc/absolute", b"x")], "expected a path below the layer"),
        ([entry("a/.wh...")], "expected a path below the layer"),
        ([entry("a/.wh.")], "expected one name"),
        ([link("door", "/tmp"), entry("door/out", b"x")], "leads through 'door'"),
        ([link("door", ".."), entry("door/deep/out", b"x")], "leads through 'door'"),
        ([link("door", ".."), hard_link("x", "door/file")], "leads through 'door'"),
        ([hard_link("x", "/etc/passwd")], "expected a path below the layer"),
        ([hard_link("x", "../../etc/passwd")], "expected a path below the layer"),
        ([hard_link("x", "nothing")], "no file of its layer"),
        ([folder("d"), hard_link("x", "d")], "no file of its layer"),
        ([entry("a" * 300, b"x")], "File name too long"),
        ([entry("big", bytes(MAX_BYTES))], "bound of layers"),
    ],
)
def test_hostile_entries_are_refused(tmp_path, entries, reason):
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(InputError, match=reason):
        unpack_entries(tmp_path / "place", *entries)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "place"]


def test_a_sparse_file_counts_with_its_real_size(tmp_path):
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    holes = b"1\n0\n512\n".ljust(512, b"\0") + bytes(512)
    content = archive(entry("big", holes, pax_headers={**fields, "GNU.sparse.name": "big"}))
    with pytest.raises(InputError, match=r"has 1099511627776 bytes, beyond the bound of layers\.max_bytes"):
        unpack(tmp_path / "a", content, content)


@pytest.mark.parametrize("compress", [lambda content: content, zstandard.compress, lambda content: layer_blob(content)])
def test_compressions(tmp_path, compress):
    content = archive(entry("a", random.Random(0).randbytes(50_000)))
    place = unpack(tmp_path / "a", compress(content), content)
    assert (place / "a").read_bytes() == random.Random(0).randbytes(50_000)


def layer_blob(content):
    # Several members, as parallel compressors write them.
    half = len(content) // 2
    return b"".join(zlib.compress(part, wbits=31) for part in (content[:half], content[half:]))


@pytest.mark.parametrize("compress", [lambda content: content, zstandard.compress, lambda content: layer_blob(content)])
def test_every_truncation_and_every_wrong_byte_is_noticed(tmp_path, compress):
    content = archive(entry("a", b"x" * 2000), entry("b", b"y" * 700))
    blob = compress(content)
    random_place = random.Random(1)
    for number in range(40):
        cut = random_place.randrange(len(blob))
        broken = blob[:cut] if number % 2 else blob[:cut] + bytes([blob[cut] ^ 1]) + blob[cut + 1 :]
        place = tmp_path / str(number)
        with pytest.raises(InputError, match="layer"):
            unpack(place, broken, content, expected=sha256(blob))


def test_a_bomb_is_stopped_at_the_bound(tmp_path):
    content = bytes(5 << 20)
    with pytest.raises(InputError, match="bound of layers"):
        unpack(tmp_path / "a", zstandard.compress(archive(entry("zeros", content))), content)


def test_another_content_than_the_image_names_is_refused(tmp_path):
    blob, content = layer(entry("a", b"1"))
    with pytest.raises(InputError, match=f"its content has the digest {sha256(content)}, expected {'0' * 64}"):
        unpack(tmp_path / "a", blob, content, diff_id="0" * 64)
