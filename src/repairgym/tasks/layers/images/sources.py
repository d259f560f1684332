"""Places that images come from: a registry, an archive of ``docker save`` (or of an OCI layout), an OCI layout folder.

Reads documents and blobs. Guarantees: nothing is read outside of the folder or archive; `InputError` for one that is
broken or incomplete.
"""

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from repairgym.errors import InputError
from repairgym.tasks.layers.images.manifests import (
    MAX_DOCUMENT_BYTES,
    Descriptor,
    Resolved,
    digest_of,
    hex_of,
    parse_document,
    parse_image,
    resolve,
)
from repairgym.tasks.layers.images.reference import parse_reference
from repairgym.tasks.layers.images.registry import Note, Registry


class ImageSource(Protocol):
    """A place that one image comes from."""

    is_remote: bool
    """True when blobs come through a network."""

    def resolve(self, platform: str) -> Resolved:
        """Return the image for ``platform`` and its blobs."""

    def blob(self, blob: Descriptor, part: Path, note: Note) -> IO[bytes]:
        """Open ``blob``; one that is fetched first lies in the file ``part``, and only its fetching is noted."""


@contextmanager
def open_source(text: str) -> Iterator[ImageSource]:
    """Yield the source that ``text`` names: a folder, an archive, or an image of a registry."""
    path = Path(text).expanduser()
    if path.is_dir():
        yield LayoutSource(text, lambda name: _open_below(path, name))
    elif path.exists():
        try:
            with tarfile.open(path) as archive:
                yield LayoutSource(text, lambda name: _open_member(archive, name))
        except tarfile.TarError as error:
            raise InputError(f"{path} is no archive of an image: {error}") from error
    else:
        registry = RegistrySource(text)
        try:
            yield registry
        finally:
            registry.close()


class RegistrySource:
    """An image of a registry."""

    is_remote = True

    def __init__(self, text: str) -> None:
        self._reference = parse_reference(text)
        self._registry = Registry(self._reference)
        self.close = self._registry.close

    def resolve(self, platform: str) -> Resolved:
        """See :meth:`ImageSource.resolve`."""
        reference = self._reference
        top = self._registry.document("manifests", reference.version)
        if reference.is_digest and (got := digest_of(top)) != reference.version:
            raise InputError(f"the manifest of {reference.text} has the digest {got}")

        return resolve(top, lambda kind, part: self._registry.document(kind, part.digest), platform, reference.text)

    def blob(self, blob: Descriptor, part: Path, note: Note) -> IO[bytes]:
        """See :meth:`ImageSource.blob`."""
        self._registry.download(blob, part, note)
        return part.open("rb")


class LayoutSource:
    """An image in files: an OCI layout, or what ``docker save`` writes."""

    is_remote = False

    def __init__(self, name: str, open_file: Callable[[str], IO[bytes]]) -> None:
        self._name, self._open = name, open_file

    def resolve(self, platform: str) -> Resolved:
        """See :meth:`ImageSource.resolve`."""
        try:
            top = self._read("index.json")
        except FileNotFoundError:
            return self._resolve_saved(platform)
        return resolve(top, lambda _, descriptor: self._read(_place(descriptor)), platform, self._name)

    def _resolve_saved(self, platform: str) -> Resolved:
        try:
            entries = parse_document(b'{"images": %s}' % self._read("manifest.json"), self._name)["images"]
            (entry,) = entries
            config, places = self._read(entry["Config"]), entry["Layers"]
        except FileNotFoundError as error:
            raise InputError(f"{self._name} is no image: it has no {error.filename}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self._name} does not hold exactly one image ({error!r})") from error
        image = parse_image(config, platform, self._name, len(places))
        return Resolved(image, tuple(Descriptor("", 0, place) for place in places))

    def _read(self, place: str) -> bytes:
        with self._open(place) as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InputError(f"{place} in {self._name} has more than {MAX_DOCUMENT_BYTES} bytes")
        return content

    def blob(self, blob: Descriptor, part: Path, note: Note) -> IO[bytes]:
        """See :meth:`ImageSource.blob`."""
        try:
            return self._open(_place(blob))
        except FileNotFoundError as error:
            raise InputError(f"{self._name} has no layer {_place(blob)}") from error


def _place(descriptor: Descriptor) -> str:
    return descriptor.place or f"blobs/sha256/{hex_of(descriptor.digest)}"


def _open_below(folder: Path, name: str) -> IO[bytes]:
    path = os.path.realpath(folder / name)
    if not path.startswith(f"{folder.resolve()}/"):
        raise InputError(f"{folder} names {name!r}, which lies outside of it")
    if not os.path.isfile(path):
        raise FileNotFoundError(2, "no such file", name)
    return open(path, "rb")


def _open_member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        # Links of old archives (one layer, two images) lead to other members only.
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise FileNotFoundError(2, "no such file", name)
    return file
