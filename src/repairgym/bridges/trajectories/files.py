"""Files of trajectories, and the registry of formats.

Reads and makes files and folders. Guarantees: an unusable document is reported with its place, and the others are read;
a file is complete or absent. A new format is a class and an entry of `FORMATS`; the first that matches a document wins.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, TrajectoryFormat
from repairgym.bridges.trajectories.formats import Atif, ChatMessages, MiniSweAgent, SweAgent
from repairgym.errors import InputError, disk_full_as_repairgym_error

_LINES = ".jsonl"

FORMATS: dict[str, TrajectoryFormat] = {
    form.name: form for form in (Atif(), SweAgent(), MiniSweAgent(), ChatMessages())
}


def detect_format(document: Document) -> TrajectoryFormat:
    """Return the format of ``document``.

    Raises:
        FormatError: no format matches.
    """
    for form in FORMATS.values():
        if form.matches(document):
            return form
    raise FormatError(f"the keys {', '.join(sorted(document)[:8]) or '(none)'} match no format of {', '.join(FORMATS)}")


@dataclass(frozen=True)
class BadDocument:
    """A document that was not read."""

    place: str
    reason: str


def write_trajectories(trajectories: Iterable[ExchangeTrajectory], form: TrajectoryFormat, out: Path) -> int:
    """Write ``trajectories`` to ``out``: a file, or a folder for a format of one file each; returns their number.

    Raises:
        DiskFullError: no room.
    """
    documents = ((trajectory.id, form.write(trajectory)) for trajectory in trajectories)
    if form.suffix == _LINES:
        lines = [json.dumps(document, ensure_ascii=False) for _, document in documents]
        _write(out, "".join(f"{line}\n" for line in lines))
        return len(lines)
    count = 0
    for name, document in documents:
        _write(out / f"{quote(name, safe='')}{form.suffix}", json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        count += 1
    return count


def read_trajectories(source: Path, form: TrajectoryFormat | None = None) -> Iterator[ExchangeTrajectory | BadDocument]:
    """Yield the trajectories of a file, or of all files below a folder with a suffix of a format.

    Args:
        source: File or folder.
        form: The format; None: detected for each document.

    Raises:
        InputError: the file does not exist, or the folder holds none of this kind.
    """
    for path in _files(source):
        for place, name, document in _documents(path):
            try:
                if document is None:
                    raise FormatError("not a JSON object")
                yield (form or detect_format(document)).read(document, name)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Other people's files: a field of a wrong type is reported, not raised.
                yield BadDocument(place, str(error) if isinstance(error, FormatError) else f"malformed: {error!r}")


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    suffixes = (*(form.suffix for form in FORMATS.values()), "trajectory.json")
    paths = sorted(path for path in source.rglob("*") if path.is_file() and path.name.endswith(suffixes))
    if not paths:
        raise InputError(f"{source} holds no trajectory; expected a file, or a folder with *{', *'.join(suffixes)}")
    return paths


def _documents(path: Path) -> Iterator[tuple[str, str, Document | None]]:
    """Yield (place, name, document); a document is None where it is not a JSON object."""
    text = path.read_text(encoding="utf-8", errors="replace")
    name = path.name
    for suffix in (".traj.json", ".traj", ".trajectory.json", ".json"):
        name = name.removesuffix(suffix)
    if path.suffix != _LINES:
        yield str(path), path.parent.name if name == "trajectory" else name, _object(text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{path}, line {number}", f"{name}-{number}", _object(line)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[-100:]}.{os.getpid()}.tmp")
    with disk_full_as_repairgym_error(path):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
