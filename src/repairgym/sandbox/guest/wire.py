"""Frames between the host and the trusted process of a sandbox: a JSON header and any number of byte strings.

Layout: ``>II`` (header length, total blob length), the header (JSON object, its ``blobs`` key lists the blob lengths),
the blobs. A connection that ends inside a frame counts as lost (:class:`EOFError`).
"""

from __future__ import annotations

import errno
import json
import socket
import struct
import traceback
from typing import Any, Dict, List, Sequence, Tuple

PREFIX = struct.Struct(">II")
Header = Dict[str, Any]
Frame = Tuple[Header, List[bytes]]


def pack(header: Header, blobs: Sequence[bytes] = ()) -> bytes:
    """Pack one frame into bytes."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((PREFIX.pack(len(text), sum(map(len, blobs))), text, *blobs))


def unpack(text: bytes, body: bytes) -> Frame:
    """Split the two parts of a frame into header and blobs."""
    header = json.loads(text)
    blobs, start = [], 0
    for length in header.pop("blobs"):
        blobs.append(body[start : start + length])
        start += length
    return header, blobs


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = connection.recv(min(num_bytes, 1 << 20))
        if not part:
            raise EOFError("the other end of the sandbox connection is gone")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def receive(connection: socket.socket) -> Frame:
    """Read one frame, blocking.

    Raises:
        EOFError: the other end is gone.
    """
    header_bytes, body_bytes = PREFIX.unpack(_receive_exactly(connection, PREFIX.size))
    return unpack(_receive_exactly(connection, header_bytes), _receive_exactly(connection, body_bytes))


def send(connection: socket.socket, header: Header, blobs: Sequence[bytes] = ()) -> None:
    """Write one frame, blocking."""
    connection.sendall(pack(header, blobs))


def describe_error(error: BaseException) -> Header:
    """Return the header that reports a failure of a trusted process."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    code = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
    return {"error": type(error).__name__, "code": code, "message": str(error), "traceback": text}
