"""Single tasks out of a task file, without reading the others.

Reads ``tasks.jsonl`` once for where each line begins; makes one `Task` at a time. Invariant: a line that is no task
hides no other task.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import ValidationError

from repairgym.errors import InputError
from repairgym.records import Task

_ID = re.compile(rb'\{\s*"schema_version":\s*\d+,\s*"id":\s*("(?:[^"\\]|\\.)*")')


class TaskLines:
    """The places of tasks in a file; none when there is no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = _places(path) if path.is_file() else {}

    def get(self, task_id: str) -> Task | None:
        """The task, None when the file has none of this id.

        Raises:
            InputError: its line is no task that this version can read.
        """
        place = self._places.get(task_id)
        if place is None:
            return None
        with self._path.open("rb") as stream:
            stream.seek(place)
            line = stream.readline()
        try:
            return Task.model_validate_json(line)
        except ValidationError as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"the task {task_id} cannot be read ({reason}); another version may have made it"
            ) from error


def _places(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    place = 0
    with path.open("rb") as stream:
        for line in stream:
            if name := _id_of(line):
                found.setdefault(name, place)
            place += len(line)
    return found


def _id_of(line: bytes) -> str | None:
    match = _ID.match(line)
    try:
        name = json.loads(match[1]) if match else json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
