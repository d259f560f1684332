"""A folder of tasks on disk.

Reads and writes::

    tasks.jsonl      one task per line, by split, package and id
    unbuilt.jsonl    one imported record per line, in the order of import; it stays when it has been built
    funnel.json      counts of each stage and the reasons of every drop, per unit and in total
    manifest.json    format of the folder, catalogue digest, seed, config, tool versions
    units/           finished units (one source on one package) of a build, from which a killed one resumes

Guarantees: every file appears whole or not at all (`DiskFullError` without room); a unit counts only for the key
(catalogue entry, config, seed, lock) that it was made with, and a broken one never; another broken file, or one of
another format, is an `InputError`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from repairgym.errors import InputError
from repairgym.records import Record, SourceKind, Split, Task
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.catalogue import file_stem
from repairgym.tasks.unbuilt import UnbuiltTask

TASKS_FILE, FUNNEL_FILE, MANIFEST_FILE, UNITS_FOLDER = "tasks.jsonl", "funnel.json", "manifest.json", "units"
UNBUILT_FILE = "unbuilt.jsonl"
FOLDER_FORMAT = 2
"""Format of a task folder, in its ``manifest.json``; folders of format 1 name their build checks otherwise."""
RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True)
class Unit:
    """The result of one source on one package."""

    name: str
    """``<source>-<package>``."""
    key: str
    funnel: dict[str, int]
    tasks: tuple[Task, ...]
    error: str = ""
    """Reason of a failure; empty for none."""
    logs: dict[str, str] = field(default_factory=dict)
    """Row of the funnel -> log of the first drop that it counts."""
    tried: tuple[str, ...] = ()
    """Digests of the bugs that were tried and are no task; of evolved tasks only."""


class TaskStore:
    """Tasks in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``; it may be missing."""
        self.folder = folder

    def load(
        self, split: Split | None = None, source: SourceKind | None = None, ids: Iterable[str] = ()
    ) -> tuple[Task, ...]:
        """Return the tasks that match every given filter, in file order; InputError for an unknown id."""
        wanted = frozenset(ids)
        matching = tuple(
            task
            for task in self._read()
            if (split is None or task.split == split)
            and (source is None or task.source == source)
            and (not wanted or task.id in wanted)
        )
        missing = sorted(wanted - {task.id for task in matching})
        if missing:
            raise InputError(f"no task {', '.join(missing)} in {self.folder}; see: repairgym tasks show {self.folder}")
        return matching

    def save(self, tasks: Iterable[Task], funnel: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Write the whole folder."""
        ordered = sorted(tasks, key=lambda task: (task.split, task.provenance.package, task.id))
        self._write(TASKS_FILE, (task.model_dump_json() + "\n" for task in ordered))
        self.save_document(FUNNEL_FILE, funnel)
        self.save_document(MANIFEST_FILE, {**manifest, "format": FOLDER_FORMAT})

    def replace(self, tasks: Iterable[Task]) -> None:
        """Write ``tasks`` in the place of those with their ids; everything else stays."""
        by_id = {task.id: task for task in tasks}
        known = self.load()
        self._write(TASKS_FILE, (by_id.get(task.id, task).model_dump_json() + "\n" for task in known))

    def save_document(self, name: str, content: dict[str, Any]) -> None:
        """Write one JSON object next to the tasks."""
        self._write(name, [json.dumps(content, indent=2, sort_keys=True) + "\n"])

    def save_unbuilt(self, tasks: Iterable[UnbuiltTask]) -> None:
        """Write all imported tasks, one at a time."""
        self._write(UNBUILT_FILE, (task.model_dump_json() + "\n" for task in tasks))

    def iter_unbuilt(self) -> Iterator[UnbuiltTask]:
        """Yield the imported tasks; none without their file."""
        path = self.folder / UNBUILT_FILE
        if path.is_file():
            yield from _read_lines(path, UnbuiltTask, "import the tasks again")

    def iter_left_unbuilt(self) -> Iterator[UnbuiltTask]:
        """Yield the imported tasks of which the folder has no certified task."""
        built = {task.id for task in self.load_certified() if task.source == "imported"}
        yield from (task for task in self.iter_unbuilt() if task.id not in built)

    @property
    def has_tasks(self) -> bool:
        """True when the folder has certified or imported tasks."""
        return any((self.folder / name).is_file() for name in (TASKS_FILE, UNBUILT_FILE))

    def load_certified(self) -> tuple[Task, ...]:
        """Return every certified task; none for a folder with imported tasks only, InputError for an empty one."""
        has_unbuilt = (self.folder / UNBUILT_FILE).is_file()
        return () if has_unbuilt and not (self.folder / TASKS_FILE).is_file() else self.load()

    def load_document(self, name: str) -> dict[str, Any]:
        """Return `FUNNEL_FILE` or `MANIFEST_FILE`; empty when it is missing."""
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is no JSON ({error}); build the tasks again") from error
        if not isinstance(content, dict):
            raise InputError(f"{path} holds no JSON object; build the tasks again")
        return content

    def save_unit(self, unit: Unit) -> None:
        """Write a finished unit."""
        head = json.dumps({name: getattr(unit, name) for name in ("name", "key", "funnel", "error", "logs", "tried")})
        lines = [head, *(task.model_dump_json() for task in unit.tasks)]
        self._write(f"{UNITS_FOLDER}/{file_stem(unit.name)}.jsonl", (line + "\n" for line in lines))

    def load_unit(self, name: str, key: str) -> Unit | None:
        """Return the finished unit ``name`` if it was made with ``key``."""
        path = self.folder / UNITS_FOLDER / f"{file_stem(name)}.jsonl"
        if not path.is_file():
            return None
        try:
            head, *lines = path.read_text(encoding="utf-8").split("\n")
            fields = json.loads(head)
            if fields["key"] != key or fields["error"]:
                return None
            fields["tried"] = tuple(fields.get("tried", ()))
            return Unit(**fields, tasks=tuple(Task.model_validate_json(line) for line in lines if line))
        except (ValueError, TypeError, KeyError):
            return None  # broken, or of a version with other records: the unit is made again

    def _read(self) -> Iterator[Task]:
        path = self.folder / TASKS_FILE if self.folder.is_dir() else self.folder
        if not path.is_file():
            if (self.folder / UNBUILT_FILE).is_file():
                raise InputError(
                    f"{self.folder} holds imported tasks without environment and certificate only; what each lacks: "
                    f"repairgym tasks show {self.folder} ID"
                )
            raise InputError(f"no {TASKS_FILE} in {self.folder}; make it with: repairgym tasks build {self.folder}")
        manifest = self.load_document(MANIFEST_FILE)
        if manifest and manifest.get("format", 1) != FOLDER_FORMAT:
            raise InputError(
                f"{self.folder} has format {manifest.get('format', 1)}, this version reads task folders of format "
                f"{FOLDER_FORMAT}; build the tasks again"
            )
        yield from _read_lines(path, Task, "build the tasks again")

    def _write(self, name: str, parts: Iterable[str]) -> None:
        with written_whole(self.folder / name) as stream:
            stream.writelines(part.encode() for part in parts)


def _read_lines(path: Path, cls: type[RecordT], remedy: str) -> Iterator[RecordT]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield cls.model_validate_json(line)
            except ValidationError as error:
                raise InputError(f"{path} line {number} is no task: {error}; {remedy}") from error
