"""Names of images in registries: ``[http[s]://]HOST[:PORT]/NAME[:TAG][@DIGEST]``, and the credentials of a registry.

Guarantees: short names are not completed, because no registry is built in; a registry on this machine is spoken to in
plain HTTP, every other one over TLS unless the name says ``http://``.
"""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from repairgym.errors import InputError

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PATTERN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>[\w.-]*[.:][\w.:-]+|localhost|\[::1\](?::\d+)?)/"
    r"(?P<name>[a-z0-9][a-z0-9._/-]*)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class Reference(NamedTuple):
    """An image of a registry."""

    text: str
    base_url: str
    host: str
    name: str
    version: str
    """Tag or digest."""

    @property
    def is_digest(self) -> bool:
        """True when the name says which bytes the manifest has."""
        return ":" in self.version


def parse_reference(text: str) -> Reference:
    """Parse the name of an image; `InputError` for one without a registry."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InputError(
            f"got the image {text!r}, expected HOST/NAME:TAG with the host of its registry, an archive of docker save, "
            "or an OCI folder"
        )
    host = match["host"]
    scheme = match["scheme"] or ("http" if is_loopback(host) else "https")
    return Reference(text, f"{scheme}://{host}", host, match["name"], match["digest"] or match["tag"] or "latest")


def is_loopback(host: str) -> bool:
    """Return True when ``host`` (with or without a port) is this machine."""
    return re.sub(r":\d+$", "", host) in _LOOPBACK


def find_credentials(host: str) -> str:
    """Return ``user:password`` in base64 as ``podman login`` or ``docker login`` stored it for ``host``, or nothing."""
    environ = os.environ
    places = (
        environ.get("REGISTRY_AUTH_FILE", ""),
        f"{environ.get('XDG_RUNTIME_DIR', '')}/containers/auth.json",
        f"{environ.get('DOCKER_CONFIG') or Path.home() / '.docker'}/config.json",
    )
    for place in filter(None, places):
        try:
            entry = json.loads(Path(place).read_text(encoding="utf-8"))["auths"][host]["auth"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(entry, str):
            return entry
    return ""
