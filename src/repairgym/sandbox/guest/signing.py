"""Records with a signature, so that lines that the recorder did not write are detected.

Reads a key (hex, fresh for each run, made by the host) and records; makes lines ``<signature> <json>``. Guarantees: the
signature covers the number of the line, so lines can be neither repeated, nor reordered, nor omitted in the middle.
An empty key is valid: the warm-up of the zygote has none.
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
    """Return a function that signs a record and writes it to ``record_fd``.

    Default arguments bind its functions when this module is loaded, so code that later replaces ``json.dumps`` or
    ``os.write`` changes nothing here.
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
    """Return the signed records of ``data`` and the number of forged lines.

    A last line without its end comes from a killed run: it is neither a record nor a forgery.
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
