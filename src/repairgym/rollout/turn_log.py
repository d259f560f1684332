"""The turns of episodes in flight, on disk: one file per episode in the run folder, until its trajectory is stored.

Reads and makes ``turns/<hash of the trajectory id>.log``: a header, then the entries of `agent/recording.py`, a line
each with a checksum. Guarantees: the kernel has an entry before `EpisodeLog.write` returns, so that a killed process
loses nothing that it wrote; a line that is cut off or damaged ends a file; entries of other settings, another
policy or another seed are not read. Nothing is forced to the disk: a power failure may cost the last turns.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, TypeAdapter, ValidationError

from repairgym.agent.recording import Entry, Outcome, SampledAction
from repairgym.errors import disk_full_as_repairgym_error

_ENTRY: TypeAdapter[SampledAction | Outcome] = TypeAdapter(Annotated[Entry, Field(discriminator="type")])
_NUM_CHECKSUM_CHARS = 8


class EpisodeLog:
    """The entries of one episode, so far; also on disk where it has a file. Use as a context manager."""

    def __init__(self, path: Path | None = None, origin: str = "") -> None:
        """Open or make the file; ``origin`` tells what its entries follow from, and others are dropped."""
        self.entries: list[Entry] = []
        self.num_dropped = 0
        """Entries of another origin."""
        self._path = path
        self._header = json.dumps({"origin": origin})
        self._file = -1
        if path is not None:
            with disk_full_as_repairgym_error(path):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; it stays until `TurnLog.forget`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, entry: Entry) -> None:
        """Add an entry; `DiskFullError` without room for it."""
        self.entries.append(entry)
        self._write_line(json.dumps(entry.model_dump(mode="json"), separators=(",", ":")))

    def restart(self) -> None:
        """Drop all entries: the episode begins again."""
        self.entries.clear()
        if self._file >= 0:
            os.ftruncate(self._file, 0)
        self._write_line(self._header)

    def _read(self) -> None:
        content = b"".join(iter(lambda: os.read(self._file, 1 << 20), b""))
        texts: list[str] = []
        num_bytes = 0
        for line in content.splitlines(keepends=True):
            text = _checked(line)
            if text is None:
                break
            texts.append(text)
            num_bytes += len(line)
        if texts[:1] != [self._header]:
            self.num_dropped = max(0, len(texts) - 1)
            self.restart()
            return
        os.ftruncate(self._file, num_bytes)
        self._take(texts[1:])

    def _take(self, lines: list[str]) -> None:
        try:
            self.entries += [_ENTRY.validate_python(json.loads(line)) for line in lines]
        except ValidationError:
            self.num_dropped = len(lines)
            self.restart()

    def _write_line(self, text: str) -> None:
        if self._file < 0:
            return
        content = text.encode("utf-8", "surrogateescape")
        line = b"%08x %s\n" % (zlib.crc32(content), content)
        with disk_full_as_repairgym_error(self._path):
            while line:
                line = line[os.write(self._file, line) :]


def _checked(line: bytes) -> str | None:
    """Return the text of a whole and undamaged line."""
    checksum, content = line[:_NUM_CHECKSUM_CHARS], line[_NUM_CHECKSUM_CHARS + 1 : -1]
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(content):
        return None
    return content.decode("utf-8", "surrogateescape")


class TurnLog:
    """The files of a run's episodes in flight."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which is made when it is first needed."""
        self._folder = folder

    def open(self, trajectory_id: str, origin: str) -> EpisodeLog:
        """Open the log of an episode, with what an earlier process has left."""
        self._folder.mkdir(exist_ok=True)
        return EpisodeLog(self.path_of(trajectory_id), origin)

    def path_of(self, trajectory_id: str) -> Path:
        """Return the file of an episode."""
        return self._folder / _file_name(trajectory_id)

    def num_bytes(self, trajectory_id: str) -> int:
        """Return the size of an episode's log; 0 where there is none."""
        path = self.path_of(trajectory_id)
        return path.stat().st_size if path.is_file() else 0

    def forget(self, trajectory_ids: Iterable[str]) -> None:
        """Remove the logs of episodes whose trajectories are stored."""
        present = set(os.listdir(self._folder)) if self._folder.is_dir() else set()
        for name in present.intersection(map(_file_name, trajectory_ids)) if present else ():
            (self._folder / name).unlink(missing_ok=True)


def _file_name(trajectory_id: str) -> str:
    return f"{hashlib.sha256(trajectory_id.encode()).hexdigest()[:32]}.log"
