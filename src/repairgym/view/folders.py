"""Run folders with their cached counts, tasks and tokenizer.

Reads a folder with one or many runs, and single tasks out of task files; makes `ViewedRun` records. Guarantees: the key
of a run comes from the search, so an address never names a path; a cached value is dropped when its file changes; an
unreadable line of a task file hides no other task; absent and unreadable runs, stores and tasks are an `InputError`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError
from tokenizers import Tokenizer

from repairgym.errors import InputError
from repairgym.evaluation.pass_at_k import TaskVerdicts
from repairgym.evaluation.runs import evaluations
from repairgym.evaluation.stages import EvalPhase
from repairgym.records import Task
from repairgym.report.html import SUMMARY_FILE
from repairgym.report.results import Result, read_result
from repairgym.report.run_folder import DATABASE_FILE, TASKS_FOLDER
from repairgym.report.tokens import find_tokenizer
from repairgym.rollout.calls import LOCK_FILE, is_locked
from repairgym.rollout.rows import PhaseRow
from repairgym.tasks.store import TASKS_FILE
from repairgym.view.reader import RunCounts, RunReader

_SEPARATOR = ":"
_SILENT_AFTER_S = 600.0
MAX_DEPTH = 3
"""Folder levels between the named folder and a run."""
_PASSED_OVER = {"tasks", "checkpoints", "node_modules", "__pycache__"}
Stamp = tuple[int, ...]
Evaluations = Mapping[EvalPhase, TaskVerdicts]
T = TypeVar("T")


def stamp_of(*paths: Path) -> Stamp:
    """Return a value that changes when a file is written, replaced, created or removed."""
    parts: list[int] = []
    for path in paths:
        try:
            stat = path.stat()
            parts += (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            parts.append(0)
    return tuple(parts)


class _Cached(Generic[T]):
    """A value that is recomputed when the stamp of its files changes."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._held: tuple[Stamp, T] | None = None

    def get(self, stamp: Stamp) -> T:
        with self._lock:
            if self._held is None or self._held[0] != stamp:
                self._held = stamp, self._make()
            return self._held[1]


class ViewedRun:
    """One run folder. Threads may share it."""

    def __init__(self, key: str, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.database = folder / DATABASE_FILE
        self._files = self.database, folder / (DATABASE_FILE + "-wal")
        self._task_file = folder / TASKS_FOLDER / TASKS_FILE
        self._counts: _Cached[RunCounts] = _Cached(RunCounts)
        self._evaluations: _Cached[Evaluations] = _Cached(self._read_evaluations)
        self._result: _Cached[Result] = _Cached(lambda: read_result(folder))
        self._tasks: _Cached[TaskLines] = _Cached(lambda: TaskLines(self._task_file))
        self._tokenizer: _Cached[Tokenizer | None] = _Cached(lambda: find_tokenizer(folder))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.key.replace("~", "/")

    def address(self, number: int) -> str:
        """Return the name of a trajectory in the address of a comparison (`RunFolders.find`)."""
        return f"{self.key}{_SEPARATOR}{number}"

    def opened(self) -> RunReader:
        """Open the store for one request."""
        return RunReader.read(self.database)

    def counts(self, reader: RunReader) -> RunCounts:
        """Return up-to-date counts of the store."""
        counts = self._counts.get(stamp_of(self.database)[:1])
        counts.update(reader)
        return counts

    @property
    def evaluations(self) -> Evaluations:
        """The verdicts of every evaluation of the run; `InputError` when it cannot be read."""
        return self._evaluations.get(stamp_of(*self._files))

    def _read_evaluations(self) -> Evaluations:
        with self.opened() as reader:
            return evaluations(reader)

    @property
    def result(self) -> Result:
        """The headline of the run's summary."""
        return self._result.get(stamp_of(self.folder / SUMMARY_FILE))

    @property
    def tasks(self) -> TaskLines:
        """The tasks of the run."""
        return self._tasks.get(stamp_of(self._task_file))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the run; None when no checkpoint has one."""
        return self._tokenizer.get(stamp_of(self.folder / "checkpoints"))

    def stamp(self) -> Stamp:
        """Return a value that changes when the run writes, and when its process ends."""
        return *stamp_of(*self._files), int(is_locked(self.folder))

    def state(self, phases: list[PhaseRow]) -> str:
        """Return the state of the run in a word: of its process, where the run has a lock, else of its phases."""
        statuses = {phase.status for phase in phases}
        if is_locked(self.folder):
            return "running" if time.time() - self.last_write_s() < _SILENT_AFTER_S else "silent"
        if "running" in statuses:
            has_lock = (self.folder / LOCK_FILE).exists()
            return "killed" if has_lock or time.time() - self.last_write_s() > _SILENT_AFTER_S else "running"
        bad = [status for status in ("failed", "interrupted") if status in statuses]
        return bad[0] if bad else "unfinished" if "planned" in statuses or not phases else "finished"

    def last_write_s(self) -> float:
        """Return the time of the last write, in seconds since the epoch."""
        written_s = [0.0]
        for path in self._files:
            # The end of a run removes some.
            with suppress(FileNotFoundError):
                written_s.append(path.stat().st_mtime)
        return max(written_s)


def check_root(root: Path) -> Path:
    """Return ``root`` if runs can lie below it; raise an `InputError` if it is no folder."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; name the folder of a run or one that holds runs")
    return root


class RunFolders:
    """All runs below one folder, or the one run that the folder is."""

    def __init__(self, root: Path) -> None:
        """Look for runs below the folder ``root``."""
        self.root = check_root(root).resolve()
        self._runs: dict[str, ViewedRun] = {}
        self._lock = threading.Lock()

    def all(self) -> list[ViewedRun]:
        """Return every present run, by name."""
        with self._lock:
            folders = dict(_find(self.root))
            self._runs = {key: self._runs.get(key) or ViewedRun(key, folder) for key, folder in sorted(folders.items())}
            return list(self._runs.values())

    def get(self, key: str) -> ViewedRun:
        """Return the run with this key."""
        with self._lock:
            known = self._runs.get(key)
        run = known or next((run for run in self.all() if run.key == key), None)
        if run is None:
            raise InputError(f"there is no run {key!r} here")
        return run

    def find(self, address: str) -> tuple[ViewedRun, int]:
        """Return run and number of the trajectory with this `ViewedRun.address`."""
        key, _, number = address.rpartition(_SEPARATOR)
        if not re.fullmatch("[0-9]{1,18}", number):
            raise InputError(f"got {address!r} to compare, expected RUN{_SEPARATOR}NUMBER")
        return self.get(key), int(number)

    def stamp(self) -> Stamp:
        """Return a value that changes when any run writes."""
        return tuple(part for run in self.all() for part in run.stamp())


def _find(root: Path) -> Iterator[tuple[str, Path]]:
    if (root / DATABASE_FILE).exists():
        yield root.name or "run", root
        return
    level = [root]
    for _ in range(MAX_DEPTH):
        folders = [child for parent in level for child in _folders_in(parent)]
        level = []
        for folder in folders:
            if (folder / DATABASE_FILE).exists():
                yield "~".join(folder.relative_to(root).parts), folder
            else:
                level.append(folder)


def _folders_in(folder: Path) -> list[Path]:
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in children if path.is_dir() and path.name[0] != "." and path.name not in _PASSED_OVER]


_ID = re.compile(rb'\{\s*"schema_version":\s*\d+,\s*"id":\s*("(?:[^"\\]|\\.)*")')


class TaskLines:
    """Positions of tasks in a file; empty without a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = _places(path) if path.is_file() else {}

    def get(self, task_id: str) -> Task | None:
        """Return the task; None when the file does not hold it."""
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
    places: dict[str, int] = {}
    place = 0
    with path.open("rb") as stream:
        for line in stream:
            if name := _id_of(line):
                places.setdefault(name, place)
            place += len(line)
    return places


def _id_of(line: bytes) -> str | None:
    match = _ID.match(line)
    try:
        name = json.loads(match[1]) if match else json.loads(line).get("id")
    except (ValueError, AttributeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
