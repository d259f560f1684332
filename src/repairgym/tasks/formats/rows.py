"""Data sets of rows as text: JSON lines and JSON.

Reads and makes files. Guarantees: JSON lines are read one at a time, whatever the file's size; a bad line is a `Row`
with its reason, and reading continues; a file that cannot be opened is an `InputError`; files appear whole or not at
all.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from repairgym.errors import InputError
from repairgym.records import Split
from repairgym.tasks.formats.base import Fields
from repairgym.tasks.layers.atomic_write import written_whole


@dataclass(frozen=True)
class Row:
    """One record of a data set, or the reason of its failure."""

    place: str
    """Place for a person to look at: ``data.jsonl line 3``."""
    fields: Fields | None
    error: str = ""
    split: Split | None = None
    """From the name of its file or folder."""


def read_json_lines(path: Path) -> Iterator[Row]:
    """Yield each line that is not blank."""
    with _opened(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _parse(f"{path.name} line {number}", line)


def read_json(path: Path) -> Iterator[Row]:
    """Yield the items of a list, or the values of a table by id; InputError for anything else."""
    with _opened(path) as stream:
        try:
            content = json.load(stream, parse_constant=_reject)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is no JSON: {error}") from error
    if isinstance(content, dict) and content and all(isinstance(item, dict) for item in content.values()):
        content = list(content.values())
    if not isinstance(content, list):
        raise InputError(f"{path} holds neither a list of records nor a table of them by id; write one record per line")
    for number, item in enumerate(content, 1):
        yield _row(f"{path.name} item {number}", item)


def _parse(place: str, text: bytes) -> Row:
    try:
        return _row(place, json.loads(text, parse_constant=_reject))
    except (ValueError, RecursionError) as error:
        return Row(place, None, f"it is no JSON: {error}")


def _row(place: str, value: Any) -> Row:
    return Row(place, value) if isinstance(value, dict) else Row(place, None, "it is no table of fields")


def _reject(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def write_json_lines(path: Path, rows: Iterable[Fields]) -> None:
    """Write one record per line."""
    with written_whole(path) as stream:
        for fields in rows:
            stream.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")


def write_json(path: Path, rows: Iterable[Fields]) -> None:
    """Write a list of records."""
    with written_whole(path) as stream:
        separator = b"[\n"
        for fields in rows:
            stream.write(separator + json.dumps(fields, ensure_ascii=False).encode())
            separator = b",\n"
        stream.write(b"\n]\n" if separator == b",\n" else b"[]\n")
