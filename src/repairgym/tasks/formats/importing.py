"""Import: add data sets of other systems to a task folder.

Reads a data set (`formats`). Adds to a `TaskStore`: `UnbuiltTask` records, and certified tasks that were exported
before. Guarantees: an unusable record is reported with its place and leaves the others alone; existing tasks stay;
importing a data set twice changes nothing; the folder changes as a whole or not at all.

Base files come from local git clones below one folder. Guarantees: no network (a partial clone does not fetch); no work
tree is touched or read; no hook or filter of the clone runs; a task without pinned files keeps its other fields and the
reason.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repairgym.diffs.apply import apply_patch
from repairgym.diffs.parse import parse_patch
from repairgym.errors import InputError
from repairgym.records import Record, Task
from repairgym.tasks.formats.base import Format, RecordError, Row
from repairgym.tasks.formats.datasets import read_dataset, write_json_lines
from repairgym.tasks.formats.exporting import certified_in
from repairgym.tasks.formats.registry import detect_format
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

REJECTED_FILE = "rejected.jsonl"
"""Place and reason of every unusable record of the last import, in the task folder."""


class BadRecord(Record):
    """An unusable record."""

    place: str
    reason: str


@dataclass
class ImportSummary:
    """Counts of an import."""

    num_records: int = 0
    num_known: int = 0
    """Records that were in the folder."""
    num_pinned: int = 0
    """New tasks with base files from a clone."""
    num_certified: int = 0
    """New tasks that were certified here before their export."""
    formats: Counter[str] = field(default_factory=Counter)
    """New unbuilt tasks by format."""
    bad: list[BadRecord] = field(default_factory=list)

    @property
    def num_imported(self) -> int:
        """New tasks."""
        return self.formats.total() + self.num_certified


class CloneFolder:
    """Git clones in a folder: ``OWNER/NAME``, ``OWNER__NAME`` or ``NAME``, with or without ``.git``, bare or not."""

    def __init__(self, folder: Path) -> None:
        """Use the clones below ``folder``; InputError if it or git is missing."""
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} with clones; make it, or leave --repos out")
        if shutil.which("git") is None:
            raise InputError("--repos needs git, which is not installed here; install it, or leave --repos out")
        self._folder = folder

    def find(self, repository: str) -> Path:
        """Return the clone of ``owner/name``; InputError if there is none."""
        owner, _, name = repository.rpartition("/")
        names = [f"{owner}/{name}", f"{owner}__{name}", name] if owner else [name]
        for place in (self._folder / f"{stem}{ending}" for stem in names for ending in ("", ".git")):
            if name and ((place / ".git").exists() or (place / "objects").is_dir()):
                return place
        wanted = repository or "a repository without a name"
        raise InputError(f"no clone of {wanted}; expected {self._folder / names[-1]}")

    def pin(self, task: UnbuiltTask) -> UnbuiltTask:
        """Return ``task`` with the texts of the files that its patches touch, or with the failure in `pin_error`."""
        try:
            return task.model_copy(update={**self._pinned(task), "pin_error": ""})
        except InputError as error:
            return task.model_copy(update={"pin_error": str(error)})

    def _pinned(self, task: UnbuiltTask) -> dict[str, object]:
        if not task.base_commit:
            raise InputError("the record names no base commit")
        clone = GitRepository(self.find(task.repository), is_offline=True)
        try:
            tree = clone.tree_id(task.base_commit)
        except InputError as error:
            raise InputError(f"commit {task.base_commit} is not in {clone.folder}; fetch it there") from error
        return {"base_tree": tree, **pinned_files(task, lambda paths: _read_files(clone, task.base_commit, paths))}


def pinned_files(task: UnbuiltTask, read: Callable[[list[str]], dict[str, str | None]]) -> dict[str, object]:
    """Return `base_files` and `gold_files` of ``task``; ``read`` returns the texts of those paths that are there.

    Raises:
        PatchError: a patch does not fit.
    """
    patches = [parse_patch(patch) for patch in (task.bug_patch, task.gold_patch, task.test_patch)]
    changed = [file for patch in patches for file in patch]
    files = read(sorted({file.old_path for file in changed if file.old_path}))
    files |= apply_patch(task.bug_patch, files.get)
    # Files that a patch adds are absent from the agent's base.
    base = {**{file.path: None for file in changed if file.old_path is None or file.can_be_new}, **files}
    return {
        "base_files": dict(sorted(base.items())),
        "gold_files": dict(sorted(apply_patch(task.gold_patch, base.get).items())),
    }


def _read_files(clone: GitRepository, commit: str, paths: list[str]) -> dict[str, str | None]:
    """Return the texts of those of ``paths`` that ``commit`` has; InputError for a file that is no UTF-8 text."""
    blobs = clone.read_blobs([f"{commit}:{path}" for path in paths if "\n" not in path])
    texts: dict[str, str | None] = {}
    for name, content in blobs.items():
        path = name.removeprefix(f"{commit}:")
        try:
            texts[path] = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no UTF-8 text in commit {commit}") from error
    return texts


@dataclass
class _Import:
    """State of one import."""

    form: Format | None
    clones: CloneFolder | None
    digests: dict[str, str] = field(default_factory=dict)
    """Task id -> digest of its record without pinned files."""
    certified: list[Task] = field(default_factory=list)
    summary: ImportSummary = field(default_factory=ImportSummary)

    def is_new(self, task: Task | UnbuiltTask) -> bool:
        """Return True for a task that was not seen before; RecordError if its id belongs to another task."""
        digest, num_before = _digest(task), len(self.digests)
        if self.digests.setdefault(task.id, digest) != digest:
            raise RecordError(f"the id {task.id} belongs to another task of the folder or of the data set")
        return len(self.digests) > num_before

    def take(self, row: Row) -> UnbuiltTask | None:
        """Return the new unbuilt task in ``row``; None for a known or certified one."""
        if row.fields is None:
            raise RecordError(row.error)
        task = (self.form or detect_format(row.fields)).read(row.fields)
        task = task if task.split else task.model_copy(update={"split": row.split})
        certified = certified_in(task)
        if not self.is_new(certified or task):
            self.summary.num_known += 1
            return None
        if certified:
            self.certified.append(certified)
            return None
        self.summary.formats[task.format] += 1
        if self.clones:
            task = self.clones.pin(task)
            self.summary.num_pinned += not task.pin_error
        return task


def import_dataset(
    source: Path,
    folder: Path,
    form: Format | None = None,
    clones: CloneFolder | None = None,
    report: Callable[[int], None] = lambda num_done: None,
) -> ImportSummary:
    """Add the records of ``source`` to the tasks in ``folder``; ``report`` gets the number of records so far.

    ``source`` is a file, a task folder, or a folder of task folders or of a data set. Without ``form`` the format of
    each record is detected. Base files are pinned from ``clones``.

    Raises:
        InputError: ``source`` holds nothing that can be read, or ``folder`` is broken.
        ConfigError: ``source`` needs pyarrow, which is not installed.
    """
    store = TaskStore(folder)
    work = _Import(form, clones)
    known = store.load_certified() if store.has_tasks else ()
    work.digests |= {task.id: _digest(task) for task in known}
    store.save_unbuilt(_known_and_new(store, source, work, report))
    work.summary.num_certified = len(work.certified)
    if work.certified or known:
        store.save([*known, *work.certified], _funnel(store, work), store.load_document(MANIFEST_FILE))
    else:
        store.save_document(FUNNEL_FILE, _funnel(store, work))
    write_json_lines(folder / REJECTED_FILE, (bad.model_dump() for bad in work.summary.bad))
    return work.summary


def _known_and_new(
    store: TaskStore, source: Path, work: _Import, report: Callable[[int], None]
) -> Iterator[UnbuiltTask]:
    for task in store.iter_unbuilt():
        work.digests[task.id] = _digest(task)
        yield task
    for row in read_dataset(source):
        work.summary.num_records += 1
        try:
            result = work.take(row)
        except RecordError as error:
            work.summary.bad.append(BadRecord(place=row.place, reason=str(error)))
        else:
            if result:
                yield result
        report(work.summary.num_records)


def _digest(task: Task | UnbuiltTask) -> str:
    if isinstance(task, Task):
        return task.digest()
    pinned = {"base_tree": "", "base_files": {}, "gold_files": {}, "pin_error": ""}
    return task.model_copy(update=pinned).digest()


def _funnel(store: TaskStore, work: _Import) -> dict[str, Any]:
    funnel = store.load_document(FUNNEL_FILE)
    done, counts = work.summary, Counter(funnel.get("total", {}).get("import", {}))
    counts.update(records=done.num_records, unreadable=len(done.bad))
    counts.update(known_before=done.num_known, kept=done.num_imported)
    return {**funnel, "total": {**funnel.get("total", {}), "import": dict(counts)}}
