"""Pulled images, found by name and given to sandboxes.

Reads the records and layers that :mod:`.pull` made. Guarantees: the layers of a returned root stay in the store until
this process ends.
"""

from pathlib import Path

from pydantic import ValidationError

from repairgym.errors import InputError
from repairgym.sandbox.base import ImageRoot
from repairgym.tasks.layers.images.manifests import Image
from repairgym.tasks.layers.images.pull import IMAGES, LAYERS, RECORD
from repairgym.tasks.layers.store import LayerStore

_MIN_DIGITS = 6


def list_images(store: LayerStore) -> tuple[Image, ...]:
    """Return every image whose record is in ``store``, sorted by name."""
    images = map(_read, (store.root / IMAGES).glob(f"*/{RECORD}"))
    return tuple(sorted(images, key=lambda image: (image.name, image.image_id)))


def _read(path: Path) -> Image:
    try:
        return Image.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is no record of an image: {error}; remove its folder and pull again") from error


def find_image(store: LayerStore, text: str) -> Image:
    """Return the image with the id, the beginning of an id (6 digits or more) or the name ``text``.

    Raises:
        InputError: there is none, or more than one.
    """
    images = list_images(store)
    is_prefix = len(text) >= _MIN_DIGITS
    named = [image for image in images if text == image.name or (is_prefix and image.image_id.startswith(text))]
    if len(named) == 1:
        return named[0]
    if not named:
        known = ", ".join(image.name for image in images) or "no image"
        raise InputError(f"got the image {text!r}, but the store has {known}; run 'repairgym layers pull' first")
    raise InputError(f"{text!r} names {len(named)} images; use an id: {', '.join(image.image_id for image in named)}")


def root_of(store: LayerStore, image: Image) -> ImageRoot:
    """Return ``image`` as the root of sandboxes; `InputError` when a layer is not in ``store`` any more."""
    layers = []
    for layer in image.layers:
        path = store.find(LAYERS, layer)
        if path is None:
            raise InputError(f"layer {layer[:12]} of {image.name} is not in the store any more; pull the image again")
        layers.append(path)
    return ImageRoot(layers=tuple(layers), variables=image.variables)


def root_of_id(store: LayerStore, image_id: str, name: str) -> ImageRoot:
    """Return the image ``image_id``, once pulled as ``name``; `InputError` when it is not in ``store``."""
    folder = store.find(IMAGES, image_id)
    if folder is None:
        raise InputError(f"the image {name} is not on this machine; pull it: repairgym layers pull {name}")
    return root_of(store, _read(folder / RECORD))


def layers_of_id(folder: Path, image_id: str) -> tuple[str, ...]:
    """Return the layers of the image ``image_id``, relative to the layer store ``folder``; empty without it."""
    path = folder / IMAGES / image_id / RECORD
    return tuple(f"{LAYERS}/{layer}" for layer in _read(path).layers) if path.is_file() else ()
