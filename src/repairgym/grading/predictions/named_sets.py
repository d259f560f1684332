"""Data sets by name or file: which instances an evaluation is over.

Reads the user's own download of a data set (any layout of `tasks import`), or a file of ids (``.txt``: one per line;
``.json``: a list). Makes the ids in their order. Guarantees: nothing is fetched; ids are never guessed; a set without a
file is an `InputError` that names what to download.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from repairgym.errors import InputError
from repairgym.tasks.formats.base import Fields, RecordError
from repairgym.tasks.formats.datasets import read_dataset
from repairgym.tasks.formats.registry import detect_format

_SUFFIXES = (".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", "")
"""Ids before records: who keeps both means the ids."""
_MONTH = re.compile(r"(?P<name>.+)-(?P<month>\d{4}-\d{2})")
_DOWNLOADS = {
    "verified": "the data set SWE-bench_Verified, 500 records",
    "verified-50": "the ids of its 50 records, one a line, of SWE-bench_Verified",
    "lite": "the data set SWE-bench_Lite, 300 records",
    "swe-rebench": "the data set SWE-rebench",
}


def instance_ids(name: str, folder: Path) -> tuple[str, ...]:
    """Return the ids of the set ``name``: a path, or the name of a file in ``folder``.

    ``NAME-2025-06`` without a file of its own is the records of NAME that were created in that month.

    Raises:
        InputError: there is no such file, or it holds no ids.
    """
    path, month = _find(name, folder)
    ids = tuple(dict.fromkeys(_ids(path, month)))
    if not ids:
        raise InputError(f"{path} holds no instance" + (f" of {month}" if month else ""))
    return ids


def _find(name: str, folder: Path) -> tuple[Path, str]:
    """Return the file of a set, and the month to which it is limited."""
    if Path(name).exists():
        return Path(name), ""
    by_month = _MONTH.fullmatch(name)
    for stem, month in ((name, ""), *([(by_month["name"], by_month["month"])] if by_month else [])):
        for path in (folder / f"{stem}{suffix}" for suffix in _SUFFIXES):
            if path.exists():
                return path, month
    stem = by_month["name"] if by_month else name
    what = _DOWNLOADS.get(stem, "its records, or its ids one a line")
    place = f"{folder / stem}.jsonl (or .parquet, .txt)"
    raise InputError(f"there is no data set {name}: download {what}, and put it at {place}")


def _ids(path: Path, month: str) -> Iterator[str]:
    if path.suffix == ".txt":
        yield from (line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        return
    if path.suffix == ".json" and (listed := _listed(path)):
        yield from listed
        return
    for row in read_dataset(path):
        if row.fields is None:
            raise InputError(f"{path}: {row.place}: {row.error}")
        try:
            yield from _id_of(row.fields, month)
        except RecordError as error:
            raise InputError(f"{path}: {row.place} is no record of a data set: {error}") from error


def _listed(path: Path) -> tuple[str, ...]:
    """Return the ids of a JSON list of texts; empty for records."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    is_list = isinstance(content, list) and all(isinstance(item, str) for item in content)
    return tuple(content) if is_list else ()


def _id_of(fields: Fields, month: str) -> Iterator[str]:
    """Yield the id of a record; nothing for one of another month."""
    task = detect_format(fields).read(fields)
    if not month or task.created_at.startswith(month):
        yield task.id
