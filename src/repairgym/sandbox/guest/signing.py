"""Records with a signature, so that a line written by anything but the recorder is seen.

Reads a key (hex, fresh for each run, made by the host) and records; makes lines ``<signature> <json>``. Invariant: the
signature covers the number of the line, so lines can be neither repeated, nor reordered, nor left out in the middle.
An empty key signs like any other: the warm-up of the zygote has none.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Callable, Dict, List, Tuple

_NUM_DIGITS = 32
_Write = Callable[[int, bytes], int]


def _signature(key: bytes, number: int, body: bytes, blake: Any) -> bytes:
    digest: str = blake(b"%d " % number + body, key=key).hexdigest()
    return digest[:_NUM_DIGITS].encode()


def writer(
    key_hex: str,
    record_fd: int,
    dumps: Callable[[Any], str] = json.dumps,
    write: _Write = os.write,
    blake: Any = hashlib.blake2b,
    signature: Callable[[bytes, int, bytes, Any], bytes] = _signature,
) -> Callable[[Dict[str, Any]], None]:
    """A function that signs a record and writes it to ``record_fd``.

    Its functions are default arguments: they are bound when this module is loaded, and code that later replaces
    ``json.dumps`` or ``os.write`` changes nothing here.
    """
    key, number = bytes.fromhex(key_hex), 0

    def sign_and_write(record: Dict[str, Any]) -> None:
        nonlocal number
        body = dumps(record).encode()
        data = signature(key, number, body, blake) + b" " + body + b"\n"
        number += 1
        while data:
            data = data[write(record_fd, data) :]

    return sign_and_write


def verify(key_hex: str, data: bytes) -> Tuple[List[Dict[str, Any]], int]:
    """The records of ``data`` that the recorder wrote, and the number of lines that it did not write.

    A last line without its end belongs to a run that was killed: it is neither a record nor a forgery.
    """
    records: List[Dict[str, Any]] = []
    num_forged = 0
    for line in data.split(b"\n")[:-1]:
        head, _, body = line.partition(b" ")
        if head == _signature(bytes.fromhex(key_hex), len(records), body, hashlib.blake2b):
            records.append(json.loads(body))
        else:
            num_forged += 1
    return records, num_forged
