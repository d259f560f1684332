"""Files of trajectories: a file is complete or absent; an unusable document is reported, and the others are read."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, TrajectoryFormat
from repairgym.bridges.trajectories.formats import FORMATS, detect_format
from repairgym.errors import InputError
from repairgym.tasks.layers.atomic_write import written_whole

_LINES = ".jsonl"


@dataclass(frozen=True)
class BadDocument:
    """A document that was not read."""

    place: str
    reason: str


def write_trajectories(trajectories: Iterable[ExchangeTrajectory], form: TrajectoryFormat, out: Path) -> int:
    """Write ``trajectories`` to ``out``: a file, or a folder for a format of one file each; returns their number."""
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

    ``form`` None: detected for each document.

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
    with written_whole(path) as stream:
        stream.write(text.encode())
