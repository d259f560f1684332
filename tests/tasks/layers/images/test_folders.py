"""Folders of an image, merged from its layers without a mount."""

import os

import pytest

from repairgym.errors import InputError
from repairgym.tasks.layers.images.folders import copy_folder, find_entry, is_image_folder
from repairgym.tasks.layers.images.unpacking import unpack_layer
from repairgym.testing.image_archives import entry, layer, link


@pytest.fixture
def unpacked(tmp_path):
    """Unpacks layers of entries; returns their folders, the lowest first."""

    def unpack(*layers):
        places = []
        for number, entries in enumerate(layers):
            place = tmp_path / "layers" / str(number)
            place.mkdir(parents=True)
            blob = tmp_path / "blob"
            blob.write_bytes(layer(*entries)[0])
            with blob.open("rb") as stream:
                unpack_layer(stream, place, "", "", 1 << 20, lambda _: None)
            places.append(place)
        return places

    return unpack


def listed(place):
    return {
        os.path.relpath(os.path.join(folder, name), place): open(os.path.join(folder, name)).read()
        for folder, _, names in os.walk(place)
        for name in names
    }


def test_upper_layers_replace_hide_and_close(unpacked, tmp_path):
    layers = unpacked(
        [entry("w/a", b"1"), entry("w/b", b"1"), entry("w/d/x", b"1"), entry("w/e/x", b"1"), entry("w/f/x", b"1")],
        [entry("w/b", b"2"), entry("w/.wh.a"), entry("w/d/.wh..wh..opq"), entry("w/d/y", b"2"), entry("w/f", b"2")],
        [entry("w/e/y", b"3"), entry("w/g/.git/HEAD", b"3"), entry("w/g/z", b"3")],
    )
    place = tmp_path / "copy"
    place.mkdir()
    copy_folder(layers, "/w", place, (".git",))
    assert listed(place) == {"b": "2", "d/y": "2", "e/x": "1", "e/y": "3", "f": "2", "g/z": "3"}
    assert (place / "e/x").samefile(layers[0] / "w/e/x")
    assert find_entry(layers, "/w/a") == []
    assert [os.path.relpath(path, tmp_path) for path in find_entry(layers, "/w/e")] == ["layers/2/w/e", "layers/0/w/e"]


def test_no_link_leads_out_of_a_copy(unpacked, tmp_path):
    kept = {"in": "sub/x", "sub/up": "../x", "sub/self": "."}
    dropped = {"root": "/etc", "sub/out": "../../x", "sub/round": "self/../../.."}
    links = [link(f"w/{name}", target) for name, target in (kept | dropped).items()]
    layers = unpacked([entry("w/x", b"1"), entry("w/sub/x", b"1"), *links, link("v", "w")])
    place = tmp_path / "copy"
    place.mkdir()
    copy_folder(layers, "/w", place, ())
    names = {os.path.relpath(path, place): os.readlink(path) for path in place.rglob("*") if path.is_symlink()}
    assert names == kept
    assert not is_image_folder(layers, "/v")
    assert find_entry(layers, "/v/x") == []
    with pytest.raises(InputError, match="the image has no folder /v"):
        copy_folder(layers, "/v", place, ())
