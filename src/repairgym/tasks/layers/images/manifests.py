"""Documents of container images: which layers an image has, in which order, and for which machine.

Reads manifests, lists of manifests by platform and configurations (OCI, and Docker's version 2 of the same), makes an
:class:`Image` and the :class:`Descriptor` of each of its blobs. Guarantees: every document that a digest names has that
digest; an unknown form is an `InputError`.
"""

import hashlib
import json
import platform as machine
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from repairgym.errors import InputError
from repairgym.records import Record

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_DEPTH = 3
"""Lists of lists are allowed and rare."""
MAX_DOCUMENT_BYTES = 8 << 20


class Descriptor(NamedTuple):
    """A blob of an image."""

    digest: str
    """``sha256:HEX`` of its bytes; empty where the source does not say."""
    num_bytes: int
    place: str = ""
    """Path in the archive that holds it; empty: the place that follows from the digest."""


class Image(Record):
    """An image whose layers the layer store has."""

    schema_version: int = 1
    image_id: str
    """SHA-256 (hex) of its configuration, which names its layers; engines show the same."""
    name: str
    """Name by which it was first pulled."""
    platform: str
    layers: tuple[str, ...]
    """Diff ids (hex): SHA-256 of each unpacked tar archive, the lowest layer first."""
    variables: dict[str, str] = {}
    """Environment variables that the image sets."""
    working_folder: str = "/"


class Resolved(NamedTuple):
    """An image and the blobs of its layers, in the same order."""

    image: Image
    blobs: tuple[Descriptor, ...]


Read = Callable[[str, Descriptor], bytes]
"""Returns a document: one of the ``manifests``, or a configuration, which lies among the ``blobs``."""


def this_platform() -> str:
    """Return the platform of this machine, e.g. ``linux/amd64``."""
    return f"linux/{_ARCHITECTURES.get(machine.machine(), machine.machine())}"


def digest_of(content: bytes) -> str:
    """Return the digest of a document as manifests write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hex_of(digest: Any) -> str:
    """Return the hexadecimal part of ``digest``; `InputError` for another algorithm or form."""
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise InputError(f"got the digest {digest!r}, expected sha256: and 64 hexadecimal digits")
    return digest.removeprefix("sha256:")


def parse_document(content: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object; `InputError` names ``what``."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InputError(f"{what} is no JSON document: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{what} is not what it should be: expected a JSON object")
    return document


def resolve(top: bytes, read: Read, platform: str, name: str, depth: int = 0) -> Resolved:
    """Return the image for ``platform`` behind the manifest, or list of manifests, ``top``.

    `InputError` where none is for the platform, or ``name`` holds several images.
    """
    manifest = parse_document(top, f"the manifest of {name}")
    try:
        if "manifests" in manifest and depth < _MAX_DEPTH:
            chosen = _choose(manifest["manifests"], platform, name)
            return resolve(_checked("manifests", chosen, read), read, platform, name, depth + 1)
        config = _descriptor(manifest["config"])
        blobs = tuple(_descriptor(layer) for layer in manifest["layers"])
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the manifest of {name} has a form that this version does not read ({error!r})") from error
    return Resolved(parse_image(_checked("blobs", config, read), platform, name, len(blobs)), blobs)


def _descriptor(entry: Mapping[str, Any]) -> Descriptor:
    hex_of(entry["digest"])
    if urls := entry.get("urls"):
        raise InputError(f"a layer has to be fetched from elsewhere ({urls}); such images cannot be used")
    return Descriptor(entry["digest"], int(entry["size"]))


def _checked(kind: str, descriptor: Descriptor, read: Read) -> bytes:
    content = read(kind, descriptor)
    if (got := digest_of(content)) != descriptor.digest:
        raise InputError(f"a document of the image has the digest {got}, expected {descriptor.digest}; pull it again")
    return content


def _choose(entries: list[dict[str, Any]], platform: str, name: str) -> Descriptor:
    platforms = {entry["digest"]: _platform_of(entry.get("platform") or {}) for entry in entries}
    fitting = [digest for digest, known in platforms.items() if not known or f"{known}/".startswith(f"{platform}/")]
    if not fitting:
        raise InputError(f"{name} has no image for {platform}, only for {', '.join(platforms.values())}")
    if len(fitting) > 1 and not platforms[fitting[0]]:
        raise InputError(f"{name} holds {len(fitting)} images; make a folder or an archive with one of them")
    return _descriptor(next(entry for entry in entries if entry["digest"] == fitting[0]))


def _platform_of(entry: Mapping[str, str]) -> str:
    return "/".join(entry[key] for key in ("os", "architecture", "variant") if entry.get(key))


def parse_image(config: bytes, platform: str, name: str, num_layers: int) -> Image:
    """Return the image that the document ``config`` describes; `InputError` when it is not one for ``platform``."""
    document = parse_document(config, f"the configuration of {name}")
    try:
        layers = tuple(hex_of(digest) for digest in document["rootfs"]["diff_ids"])
        settings = document.get("config") or {}
        variables = {name: value for name, _, value in (text.partition("=") for text in settings.get("Env") or ())}
        working_folder = str(settings.get("WorkingDir") or "/")
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the configuration of {name} has a form that this version does not read ({error!r})"
        ) from error
    known = _platform_of(document)
    if not f"{known}/".startswith(f"{platform}/"):
        raise InputError(f"{name} is an image for {known or 'an unknown platform'}, not for {platform}")
    if len(layers) != num_layers or not layers:
        raise InputError(f"{name} has {num_layers} layers, and its configuration names {len(layers)}")
    image_id = hashlib.sha256(config).hexdigest()
    return Image(
        image_id=image_id, name=name, platform=known, layers=layers, variables=variables, working_folder=working_folder
    )
