"""Frames between the host and the trusted process of a sandbox, and the records of a test run.

A frame is ``>II`` (header length, total blob length), the header (JSON object, its ``blobs`` key lists the blob
lengths), the blobs. A connection that ends inside a frame counts as lost (:class:`EOFError`).

A record is a line. The tests write ``<signature> <json>`` to their supervisor, signed with a key (hex) of one run; the
supervisor writes ``<json>`` to the host. Guarantees: the signature covers the number of the line, so lines can be
neither repeated, nor reordered, nor omitted in the middle.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import struct
import traceback
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

PREFIX = struct.Struct(">II")
RECORD_FD = 3
"""Descriptor of the record pipe in an untrusted child."""
_HELD = ("setup", "call")
"""Phases whose records wait for the next one."""
Header = Dict[str, Any]
Frame = Tuple[Header, List[bytes]]
_NUM_DIGITS = 32
_MAX_LINE_BYTES = 8 << 20
"""Of a signed line; the longest honest one lists the ids of a run's tests."""


def pack(header: Header, blobs: Sequence[bytes] = ()) -> bytes:
    """Pack one frame into bytes."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((PREFIX.pack(len(text), sum(map(len, blobs))), text, *blobs))


def pack_request(header: Header, blobs: Sequence[bytes]) -> bytes:
    """Pack a request; its last ``num_late`` blobs are a frame of their own, which is received after the fork.

    The memory of the forked process, which runs untrusted code, must not hold them.
    """
    num_early = len(blobs) - header.get("num_late", 0)
    late = pack({}, blobs[num_early:]) if num_early < len(blobs) else b""
    return pack(header, blobs[:num_early]) + late


def unpack(text: bytes, body: bytes) -> Frame:
    """Split the two parts of a frame into header and blobs."""
    header = json.loads(text)
    blobs, start = [], 0
    for length in header.pop("blobs"):
        blobs.append(body[start : start + length])
        start += length
    return header, blobs


def receive_fds(connection: socket.socket, num_bytes: int, max_fds: int) -> Tuple[bytes, List[int]]:
    """Return a message and its descriptors; `socket.recv_fds` is missing before Python 3.9."""
    size = struct.calcsize("i")
    message, parts, _, _ = connection.recvmsg(num_bytes, socket.CMSG_LEN(max_fds * size))
    fds: List[int] = []
    for level, kind, data in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(data) // size}i", data[: len(data) // size * size])
    return message, fds


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
    """Read one frame, blocking; raise ``EOFError`` when the other end is gone."""
    header_bytes, body_bytes = PREFIX.unpack(_receive_exactly(connection, PREFIX.size))
    return unpack(_receive_exactly(connection, header_bytes), _receive_exactly(connection, body_bytes))


def send(connection: socket.socket, header: Header, blobs: Sequence[bytes] = ()) -> None:
    """Write one frame, blocking."""
    connection.sendall(pack(header, blobs))


class UnusableError(Exception):
    """The sandbox lacks what a request needs; nothing that code in it did."""


def describe_error(error: BaseException) -> Header:
    """Return the header that reports a failure of a trusted process."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    code = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
    return {"error": type(error).__name__, "code": code, "message": str(error), "traceback": text}


@contextlib.contextmanager
def reporting(connection: socket.socket) -> Iterator[None]:
    """Report a failure of the trusted process to the host; an ``EOFError`` means that the host hung up."""
    try:
        yield
    except EOFError:
        return
    except Exception as error:
        with contextlib.suppress(OSError):
            send(connection, describe_error(error))


# --- signed records ---------------------------------------------------------------------------------------------------


def _signature(key: bytes, number: int, body: bytes, blake: Any) -> bytes:
    digest: str = blake(b"%d " % number + body, key=key).hexdigest()
    return digest[:_NUM_DIGITS].encode()


def record_writer(
    key_hex: str,
    record_fd: int,
    dumps: Callable[[Any], str] = json.dumps,
    write: Callable[[int, memoryview], int] = os.write,
    blake: Any = hashlib.blake2b,
    signature: Callable[[bytes, int, bytes, Any], bytes] = _signature,
) -> Callable[[Header], None]:
    """Return a function that signs a record and writes it to ``record_fd``; an empty key is valid (warm-up).

    Records of a setup and of a call wait for the next one, the teardown's at the latest: without that a test has no
    result, and each write wakes who reads it.

    Default arguments bind its functions when this module is loaded, so code that later replaces ``json.dumps`` or
    ``os.write`` changes nothing here.
    """
    key, number, held = bytes.fromhex(key_hex), 0, b""

    def sign_and_write(record: Header) -> None:
        nonlocal number, held
        body = dumps(record).encode()
        held += signature(key, number, body, blake) + b" " + body + b"\n"
        number += 1
        if record.get("phase") in _HELD:
            return
        rest, held = memoryview(held), b""  # a view: each slice of bytes would copy what is left
        while rest:
            rest = rest[write(record_fd, rest) :]

    return sign_and_write


class RecordReader:
    """A reader of signed lines as they come; a last line without its end is neither a record nor a forgery."""

    def __init__(self, key_hex: str) -> None:
        self._key = bytes.fromhex(key_hex)
        self._number = 0
        self._rest: List[bytes] = []
        self._num_rest_bytes = 0
        self.is_lost = False
        """A line had no end: what follows cannot be told from forgeries."""

    def feed(self, data: bytes) -> Iterator[Optional[Header]]:
        """Yield the record of each complete line of ``data``; None for a forged one, and for one that has no end."""
        *lines, rest = data.split(b"\n")
        if lines:  # a line that comes in many parts is joined once
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._num_rest_bytes = [], 0
        self._rest.append(rest)
        self._num_rest_bytes += len(rest)
        if self._num_rest_bytes > _MAX_LINE_BYTES:
            self._rest, self._num_rest_bytes = [], 0
            self.is_lost = True
            yield None
        for line in lines:
            head, _, body = line.partition(b" ")
            if head == _signature(self._key, self._number, body, hashlib.blake2b):
                self._number += 1
                yield json.loads(body)
            else:
                yield None


def parse_records(data: bytes) -> Tuple[List[Header], int]:
    """Return the records that a supervisor wrote, and the number of lines that are none."""
    records: List[Header] = []
    num_forged = 0
    for line in data.split(b"\n")[:-1]:
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            num_forged += 1
    return records, num_forged
