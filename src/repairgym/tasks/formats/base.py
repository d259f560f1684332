"""Exchange formats: the interface, and lossless reading and writing of one record.

A format is a subclass of `Format` and one line in `registry.FORMATS`. It knows its own fields only; `Format.read` finds
the fields that it cannot reproduce by writing the task again, and keeps them in `extra` and `absent`. Guarantees:
``write(read(fields)) == fields``, types included; a field that is missing or has the wrong type raises `RecordError`.
"""

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from repairgym.errors import InputError
from repairgym.records import Split
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask

Fields = dict[str, Any]
"""One record: field name -> JSON value. Of a task folder: relative path -> file (see `folders`)."""

FILES_FIELD = "files"
"""Field of a row with the files of the task folder that it was made from."""
EXTRA_FILE = "record.json"
"""File of a task folder with the fields of the row that it was made from."""


class RecordError(InputError):
    """An unusable record of a data set."""


@dataclass(frozen=True)
class Row:
    """One record of a data set, or the reason of its failure."""

    place: str
    """Place for a person to look at: ``data.jsonl line 3``."""
    fields: Fields | None
    error: str = ""
    split: Split | None = None
    """From the name of its file or folder."""


class Format(ABC):
    """The notation of tasks in one other system."""

    name: FormatName
    is_folder = False
    """True when a record is a folder of files, False when it is a row of fields."""
    required: tuple[str, ...]
    """The distinctive fields of a record."""

    def matches(self, fields: Fields) -> bool:
        """Return True when ``fields`` have the distinctive fields of this format."""
        return has(fields, *self.required)

    def read(self, fields: Fields) -> UnbuiltTask:
        """Return a task that keeps all of ``fields``."""
        try:
            json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RecordError(f"a value is no JSON: {error}") from error
        task = self._read(fields)
        if not task.id.strip():
            raise RecordError("the id is empty")
        known = self._write(task)
        extra = {name: value for name, value in fields.items() if name not in known or not _equal(known[name], value)}
        return task.model_copy(update={"extra": extra, "absent": tuple(sorted(known.keys() - fields.keys()))})

    def write(self, task: UnbuiltTask, is_from_folder: bool) -> Fields:
        """Return ``task`` in this format with its unknown fields; ``is_from_folder``: it was read from a folder."""
        known = self._write(task)
        if self.name == task.format:
            return {name: value for name, value in known.items() if name not in task.absent} | task.extra
        if self.is_folder == is_from_folder:
            return task.extra | known
        if not task.extra:
            return known
        if is_from_folder:
            return {FILES_FIELD: task.extra} | known
        return {EXTRA_FILE: json.dumps(task.extra, indent=2, ensure_ascii=False) + "\n"} | known

    @abstractmethod
    def _read(self, fields: Fields) -> UnbuiltTask:
        """Return the task in the fields that the format knows."""

    @abstractmethod
    def _write(self, task: UnbuiltTask) -> Fields:
        """Return the fields of ``task``; a task without something that the format requires raises `RecordError`."""


def _equal(value: Any, other: Any) -> bool:
    """Return True for equal values of equal types: 1, 1.0 and True differ."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


# --- reading fields ------------------------------------------------------------------------------------------------


def has(fields: Fields, *names: str) -> bool:
    """Return True when each of ``names`` is present and not null."""
    return all(fields.get(name) is not None for name in names)


def get_text(fields: Fields, name: str, default: str | None = "") -> str:
    """Return the text of a field, or ``default`` for a missing one (None: it is required); null counts as missing."""
    value = fields.get(name)
    if value is None:
        if default is None:
            raise RecordError(f"the field {name!r} is missing")
        return default
    if not isinstance(value, str):
        raise RecordError(f"the field {name!r} is {_kind(value)}, expected text")
    return value


def get_names(fields: Fields, name: str) -> tuple[str, ...]:
    """Return the test names of a required field: a list, or a list as JSON in a text (SWE-bench)."""
    value = fields.get(name)
    value = [] if isinstance(value, str) and not value.strip() else _decoded(name, value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RecordError(f"the field {name!r} is {_kind(value)}, expected a list of test names")
    return tuple(value)


def get_table(fields: Fields, name: str) -> Fields:
    """Return the nested fields of a field (a table, or JSON in a text); empty when it is missing."""
    value = _decoded(name, fields.get(name))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecordError(f"the field {name!r} is {_kind(value)}, expected nested fields")
    return value


def _decoded(name: str, value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RecordError(f"the field {name!r} is no JSON: {error}") from error


def get_commands(fields: Fields, name: str) -> tuple[str, ...]:
    """Return shell commands: a text is one, a list holds several, anything else none."""
    value = fields.get(name)
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def get_scores(table: Fields) -> dict[str, float]:
    """Return the numbers among the values of ``table``."""
    numbers = {name: value for name, value in table.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if not isinstance(value, bool)}


def text_or_empty(value: Any) -> str:
    """Return ``value`` if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def keep_filled(fields: Fields) -> Fields:
    """Return ``fields`` without empty ones."""
    return {name: value for name, value in fields.items() if value not in ("", [], {}, None)}


def _kind(value: Any) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "missing" if value is None else type(value).__name__)


_SPLITS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_WORD = re.compile(r"[a-z]+")


def split_of(name: str) -> Split | None:
    """The split that ``name`` means by its first word; None when it means none (``train-00000-of-00002`` is train)."""
    word = _WORD.match(name.lower())
    return _SPLITS.get(word[0]) if word else None
