"""Files of trajectories: documents out, documents in.

Reads and makes files and folders. Invariants: a document that cannot be used is named with its place and costs no
other; a file is whole or absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, TrajectoryFormat
from repairgym.bridges.trajectories.registry import FORMATS, detect_format
from repairgym.errors import InputError, disk_full_as_repairgym_error

_LINES = ".jsonl"


@dataclass(frozen=True)
class BadDocument:
    """A document that was left out."""

    place: str
    reason: str


def write_trajectories(trajectories: Iterable[ExchangeTrajectory], form: TrajectoryFormat, out: Path) -> int:
    """Write ``trajectories`` to the file or, for a format of one file each, into the folder ``out``; returns how many.

    Raises:
        DiskFullError: no room.
    """
    documents = ((one.id, form.write(one)) for one in trajectories)
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
    """The trajectories of a file, or of all files below a folder whose names end as those of a format do.

    Args:
        source: File or folder.
        form: The format; None: each document says it.

    Raises:
        InputError: there is no such file, or none of this kind in the folder.
    """
    for path in _files(source):
        for place, name, document in _documents(path):
            try:
                if document is None:
                    raise FormatError("no JSON object")
                yield (form or detect_format(document)).read(document, name)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Other people's files: a field of any other kind than the format says ends here, not in a traceback.
                yield BadDocument(place, str(error) if isinstance(error, FormatError) else f"malformed: {error!r}")


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    suffixes = (*(form.suffix for form in FORMATS.values()), "trajectory.json")
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.name.endswith(suffixes))
    if not found:
        raise InputError(f"{source} holds no trajectory; expected a file, or a folder with *{', *'.join(suffixes)}")
    return found


def _documents(path: Path) -> Iterator[tuple[str, str, Document | None]]:
    """(place, name, document) of each; a document is None where it is no JSON object."""
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
