"""A client of image registries: documents and blobs of one image, without an engine.

Reads the registry of a :class:`~.reference.Reference` (version 2 of the registry protocol; no authentication, basic, or
bearer tokens). Makes documents and blob files. Guarantees: a blob file is whole or continues where it broke off (HTTP
ranges), in this or in another process; credentials go to the registry's own host, and to a token server over TLS only.
A registry that does not answer, rejects, or does not have the image raises `RegistryUnavailableError`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from repairgym.errors import ImageNotFoundError, InputError, RegistryUnavailableError
from repairgym.tasks.layers.images.manifests import MAX_DOCUMENT_BYTES, Descriptor
from repairgym.tasks.layers.images.reference import Reference, find_credentials, is_loopback
from repairgym.tasks.layers.package_index import BACK_OFF_S, NETWORK_TIMEOUT_S, TRANSIENT_STATUS

if TYPE_CHECKING:  # a fifth of a second to import
    import httpx2

_MANIFEST_TYPES = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
Note = Callable[[int], None]
"""Is told of each number of bytes that has arrived."""


class _InterruptedError(Exception):
    """An answer that is worth another attempt."""


class Registry:
    """The registry of ``reference``; ``sleep`` waits between attempts. Threads can share it."""

    def __init__(self, reference: Reference, sleep: Callable[[float], None] = time.sleep) -> None:
        import httpx2

        self._reference, self._sleep = reference, sleep
        self._client = httpx2.Client(timeout=NETWORK_TIMEOUT_S, follow_redirects=True)
        self._base = f"{reference.base_url}/v2/{reference.name}"
        self._authorization = ""
        self._authorizing = threading.Lock()

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def document(self, kind: str, version: str) -> bytes:
        """Return the manifest (``kind`` ``manifests``) or the small blob (``blobs``) ``version``."""
        chunks: list[bytes] = []

        def fetch() -> None:
            chunks.clear()
            with self._get(f"{self._base}/{kind}/{version}", {"Accept": _MANIFEST_TYPES}) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if sum(map(len, chunks)) > MAX_DOCUMENT_BYTES:
                        raise InputError(
                            f"{self._reference.text} has a document of more than {MAX_DOCUMENT_BYTES} bytes"
                        )

        self._persist(fetch, lambda: 0)
        return b"".join(chunks)

    def download(self, blob: Descriptor, part: Path, note: Note) -> None:
        """Fill the file ``part``, which may hold the beginning, with the bytes of ``blob``; digests are not checked."""
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        self._persist(lambda: self._continue(blob, part, note), lambda: part.stat().st_size)

    def _continue(self, blob: Descriptor, part: Path, note: Note) -> None:
        have = part.stat().st_size
        if have > blob.num_bytes:
            part.unlink()
            have = 0
        if have == blob.num_bytes:
            return
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with self._get(f"{self._base}/blobs/{blob.digest}", headers) as response:
            is_rest = have > 0 and response.headers.get("content-range", "").startswith(f"bytes {have}-")
            with part.open("ab" if is_rest else "wb") as file:
                _copy(response, file, blob.num_bytes, note)
        if part.stat().st_size < blob.num_bytes:
            raise _InterruptedError(f"the answer ended after {part.stat().st_size} of {blob.num_bytes} bytes")

    def _persist(self, attempt: Callable[[], None], progress: Callable[[], int]) -> None:
        """Repeat ``attempt`` while its failures can pass; waits begin again after ``progress``."""
        import httpx2

        waits, have = iter(BACK_OFF_S), progress()
        while True:
            try:
                return attempt()
            except (httpx2.TransportError, _InterruptedError) as error:
                if progress() > have:
                    waits, have = iter(BACK_OFF_S), progress()
                wait_s = next(waits, None)
                if wait_s is None:
                    host = self._reference.host
                    raise RegistryUnavailableError(
                        f"the registry {host} does not answer: {error or error!r}"
                    ) from error
                self._sleep(wait_s)

    @contextmanager
    def _get(self, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        for is_last in (False, True):
            sent = self._authorization
            own = {"Authorization": sent} if sent else {}
            with self._client.stream("GET", url, headers={**headers, **own}) as response:
                if response.status_code == 401 and not is_last:
                    self._authorize(response.headers.get("www-authenticate", ""), sent)
                    continue
                self._check(response)
                yield response
                return

    def _check(self, response: httpx2.Response) -> None:
        status, reference = response.status_code, self._reference
        if status in TRANSIENT_STATUS:
            raise _InterruptedError(f"status {status}")
        if status in (401, 403):
            remedy = "check the name, or log in with podman login or docker login"
            raise ImageNotFoundError(
                f"the registry {reference.host} rejects the request for {reference.name} ({status}); {remedy}"
            )
        if status == 404:
            raise ImageNotFoundError(f"the registry {reference.host} has no image {reference.text}; check the name")
        if status not in (200, 206):
            raise RegistryUnavailableError(
                f"the registry {reference.host} answers {reference.text} with status {status}"
            )

    def _authorize(self, challenge: str, failed: str) -> None:
        """Get what ``challenge`` asks for; another thread may have done so since ``failed`` was sent."""
        with self._authorizing:
            if self._authorization != failed:
                return
            scheme, _, rest = challenge.partition(" ")
            values = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            credentials = find_credentials(self._reference.host)
            if scheme.lower() == "bearer" and "realm" in values:
                self._authorization = f"Bearer {self._fetch_token(values, credentials)}"
            elif scheme.lower() == "basic" and credentials:
                self._authorization = f"Basic {credentials}"

    def _fetch_token(self, values: dict[str, str], credentials: str) -> str:
        realm = urlsplit(values["realm"])
        query = {"scope": f"repository:{self._reference.name}:pull"}
        query |= {key: values[key] for key in ("service", "scope") if key in values}
        is_private = realm.scheme == "https" or is_loopback(realm.netloc)
        headers = {"Authorization": f"Basic {credentials}"} if credentials and is_private else {}
        response = self._client.get(values["realm"], params=query, headers=headers)
        self._check(response)
        try:
            document = response.json()
            return str(document.get("token") or document["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise RegistryUnavailableError(f"{realm.netloc} gives no token for {self._reference.name}") from error


def _copy(response: httpx2.Response, file: IO[bytes], num_bytes: int, note: Note) -> None:
    for chunk in response.iter_raw():
        file.write(chunk)
        note(len(chunk))
        if file.tell() > num_bytes:
            raise InputError(f"the registry sends more than the {num_bytes} bytes that the manifest names")
