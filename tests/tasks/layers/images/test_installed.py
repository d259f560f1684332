"""Pulled images by name and id, and as roots of sandboxes."""

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import InputError
from repairgym.tasks.layers.images.installed import find_image, list_images, root_of
from repairgym.tasks.layers.images.pull import LAYERS, pull
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.image_archives import entry, layer, write_saved

BASE, FIRST, SECOND = (layer(entry(name, name.encode())) for name in ("base", "first", "second"))


@pytest.fixture
def store(tmp_path):
    return LayerStore(tmp_path / "store", config=LayersConfig())


@pytest.fixture
def images(store, tmp_path):
    return [
        pull(store, str(write_saved(tmp_path / f"{name}.tar", layers, config={"Env": [f"NAME={name}"]}))).image
        for name, layers in (("one", [BASE, FIRST]), ("two", [BASE, SECOND]))
    ]


def test_images_are_found_by_name_and_id(store, images):
    one, two = images
    assert list_images(store) == (one, two)
    for text in (one.name, one.image_id, one.image_id[:6]):
        assert find_image(store, text) == one
    with pytest.raises(InputError, match=r"got the image 'three', but the store has .*one\.tar, .*two\.tar; run"):
        find_image(store, "three")
    with pytest.raises(InputError, match=f"got the image {one.image_id[:5]!r}"):
        find_image(store, one.image_id[:5])


def test_an_empty_store_has_no_image(store):
    with pytest.raises(InputError, match="but the store has no image; run 'repairgym layers pull' first"):
        find_image(store, "one")


def test_the_root_holds_layers_in_order_and_variables(store, images):
    root = root_of(store, images[0])
    assert [path.name for path in root.layers] == list(images[0].layers)
    assert [[file.name for file in path.iterdir()] for path in root.layers] == [["base"], ["first"]]
    assert root.variables == {"NAME": "one"}
    store.release(LAYERS, images[0].layers[0])
    with pytest.raises(InputError, match="is not in the store any more; pull the image again"):
        root_of(store, images[0])
