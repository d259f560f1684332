"""Records in a file of JSON lines, which an interrupted command continues.

Guarantees: the last line of a key counts; a line that a killed command cut is dropped, and the next one written in its
place; without room (`DiskFullError`) the lines before are intact; a broken line is an `InputError` that names it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.records import Record

RecordT = TypeVar("RecordT", bound=Record)


class RecordLines(Generic[RecordT]):
    """Records of one class in a file, by a key."""

    def __init__(self, path: Path, cls: type[RecordT], key: Callable[[RecordT], str], remedy: str) -> None:
        """Use ``path``, which may be missing; an error of a broken line says ``remedy``."""
        self._path, self._cls, self._key, self._remedy = path, cls, key, remedy

    def load(self) -> dict[str, RecordT]:
        """Return records by key; none without a file."""
        records = {}
        for number, line in enumerate(self._whole_lines(), 1):
            try:
                record = self._cls.model_validate_json(line)
            except ValueError as error:
                text = f"{self._path} line {number} is no {self._cls.__name__}: {error}; {self._remedy}"
                raise InputError(text) from error
            records[self._key(record)] = record
        return records

    def _whole_lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        try:
            return self._path.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise InputError(f"cannot read {self._path}: {error.strerror}") from error

    def add(self, record: RecordT) -> None:
        """Append one line."""
        with disk_full_as_repairgym_error(self._path), self._path.open("a+b") as stream:
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.write(record.model_dump_json().encode() + b"\n")
