"""A small image registry for tests: real HTTP, the part of the protocol that a pull needs, and faults.

Serves documents and blobs by path, with ranges and optionally bearer tokens. A fault is a number of bytes after which
the connection breaks, once per blob.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from typing import Any

from repairgym.testing.servers import HttpFake, HttpRequest, head, send

_TOKEN = "a-token"


class FakeRegistry(HttpFake):
    """A registry of images that `add` makes; ``has_tokens``: it asks for a bearer token."""

    def __init__(self, *, has_tokens: bool = False, break_after: int = 0) -> None:
        self.documents: dict[str, bytes] = {}
        """Path -> content."""
        self.num_bytes_sent: Counter[str] = Counter()
        """Path -> bytes of answers."""
        self._has_tokens, self._break_after = has_tokens, break_after
        self._broken: set[str] = set()

    def add(self, name: str, tag: str, layers: list[tuple[bytes, bytes]], **config: Any) -> str:
        """Add an image of ``layers`` (blob, tar archive), the lowest first; return the digest of its manifest."""
        diff_ids = [digest(archive) for _, archive in layers]
        described = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}, **config}
        blobs = [json.dumps(described).encode(), *(blob for blob, _ in layers)]
        entries = [{"digest": digest(blob), "size": len(blob)} for blob in blobs]
        for blob in blobs:
            self.documents[f"{name}/blobs/{digest(blob)}"] = blob
        return self.add_manifest(name, tag, {"schemaVersion": 2, "config": entries[0], "layers": entries[1:]})

    def add_manifest(self, name: str, tag: str, manifest: dict[str, Any]) -> str:
        """Add a manifest, or a list of them, by tag and by digest; return its digest."""
        content = json.dumps(manifest).encode()
        for version in (tag, digest(content)):
            self.documents[f"{name}/manifests/{version}"] = content
        return digest(content)

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer one request."""
        if request.path == "/token":
            return await send(writer, 200, json.dumps({"token": _TOKEN}).encode())
        if self._has_tokens and f"authorization: bearer {_TOKEN}" not in request.head.lower():
            host = re.search(r"(?im)^host: (\S+)", request.head)
            realm = f'Bearer realm="http://{host[1] if host else ""}/token",service="fake"'
            return await send(writer, 401, b"{}", {"WWW-Authenticate": realm})
        path = request.path.removeprefix("/v2/")
        content = self.documents.get(path)
        if content is None:
            return await send(writer, 404, b"{}")
        asked = re.search(r"(?im)^range: bytes=(\d+)-", request.head)
        start = int(asked[1]) if asked else 0
        return await self._send_rest(path, content, start, 206 if asked else 200, writer)

    async def _send_rest(
        self, path: str, content: bytes, start: int, status: int, writer: asyncio.StreamWriter
    ) -> bool:
        rest = content[start:]
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if status == 206 else {}
        is_cut = 0 < self._break_after < len(rest) and "/blobs/" in path and path not in self._broken
        sent = rest[: self._break_after] if is_cut else rest
        self.num_bytes_sent[path] += len(sent)
        writer.write(head(status, len(rest), headers) + sent)
        await writer.drain()
        self._broken.add(path)
        return not is_cut


def digest(content: bytes) -> str:
    """Return the digest of ``content`` as manifests write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
