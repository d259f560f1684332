"""Damage to a layer is found and named."""

import os

import pytest

from repairgym.tasks.layers.inventory import find_damage, manifest_path, read_manifest
from repairgym.tasks.layers.store import LayerStore


def fill(place):
    (place / "bin").mkdir()
    (place / "bin" / "run").write_text("#!/bin/sh\n")
    (place / "bin" / "run").chmod(0o755)
    (place / "text").write_text("as built")
    (place / "link").symlink_to("text")
    (place / os.fsdecode(b"odd \xff name")).touch()


@pytest.fixture
def layer(tmp_path):
    return LayerStore(tmp_path).build_once("trees", "digest", fill)


def test_a_layer_as_it_was_built_has_no_damage(layer):
    assert find_damage(layer) == ()
    manifest = read_manifest(layer)
    assert manifest.num_bytes == 18
    assert manifest.entries["link"] == "link:text"
    assert manifest.entries["bin"] == "folder"
    assert manifest.entries["bin/run"].startswith("file:755:")


def change(layer):
    (layer / "text").write_text("changed!")


def remove(layer):
    (layer / "link").unlink()


def add(layer):
    (layer / "bin" / "new").touch()


def weaken(layer):
    (layer / "bin" / "run").chmod(0o644)


def redirect(layer):
    (layer / "link").unlink()
    (layer / "link").symlink_to("bin")


def replace(layer):
    (layer / "text").unlink()
    (layer / "text").mkdir()


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (change, "text: has other content"),
        (remove, "link: is missing"),
        (add, "bin/new: was added"),
        (weaken, "bin/run: has mode 644, had 755"),
        (redirect, "link: points elsewhere"),
        (replace, "text: was a file, is a folder"),
    ],
)
def test_each_damage_names_its_path(layer, damage, line):
    damage(layer)
    assert find_damage(layer) == (line,)


def test_a_changed_manifest_hides_nothing(layer):
    change(layer)
    path = manifest_path(layer)
    original = path.read_text()
    digest = read_manifest(layer).entries["text"].rpartition(":")[2]
    path.write_text(original.replace(digest, "0" * 64))
    assert find_damage(layer) == ("its manifest was changed",)
    path.write_text(original[:50])
    assert find_damage(layer) == ("its manifest was changed",)
    path.unlink()
    assert find_damage(layer) == ("has no manifest: built by an older version",)
