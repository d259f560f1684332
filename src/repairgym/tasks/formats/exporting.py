"""Export: write the tasks of a folder in an exchange format.

Reads a `TaskStore`. Makes a data set. No other system knows the pinned sdist of a certified task. Therefore the usable
parts are written in the format's fields (the patch of tests is the difference between the agent's test files and the
pinned ones), and the whole record in `CERTIFIED_FIELD`, from which an import restores the same certified task.
Guarantees: a task that the format cannot hold is reported with the reason; the others are written.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from packaging.utils import canonicalize_name

from repairgym.diffs.make import unified_diff
from repairgym.records import Task
from repairgym.tasks.build.assembly import read_text
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.formats.base import EXTRA_FILE, Fields, Format, RecordError, text_or_empty
from repairgym.tasks.formats.datasets import Layout, folder_name, write_rows, write_task_folders
from repairgym.tasks.formats.harbor import base_image, certified_files
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.formats.swe_bench_5 import REPO_FILE, task_repo_file
from repairgym.tasks.layers.debian import DEBIAN_HEAD
from repairgym.tasks.layers.environments import WHEELHOUSE_HEAD
from repairgym.tasks.layers.npm_locks import is_npm_lock
from repairgym.tasks.layers.requirement_pins import pinned_versions
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

CERTIFIED_FIELD = "repairgym_task"
"""Field with the JSON of the certified task that a record was made from."""


@dataclass
class ExportSummary:
    """Counts of an export, and the tasks that failed."""

    num_written: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Task id -> reason of the failure."""
    splits: set[str] = field(default_factory=set)


def strip_task(task: Task, tree: Path) -> UnbuiltTask:
    """Return ``task`` for other systems, with its whole record in `CERTIFIED_FIELD`.

    ``tree`` is its pinned tree, which has the hidden tests.
    """
    test_paths = [path for path in task.base_files if path in task.test_paths]
    pinned = {path: read_text(tree / path) if (tree / path).is_file() else None for path in test_paths}
    return UnbuiltTask(
        id=task.id,
        format="swe_gym",  # rows with lists: convertible to any other format
        repository=task.provenance.package,
        version=task.provenance.version,
        issue=task.issue,
        gold_patch=task.gold_patch,
        test_patch=unified_diff({path: task.base_files[path] for path in test_paths}, pinned),
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        created_at=task.created_at,
        language="python",
        python=task.environment.python,
        lock=task.environment.lock,
        split=task.split,
        labels=task.labels,
        extra={CERTIFIED_FIELD: task.model_dump_json()},
    )


def certified_in(task: UnbuiltTask) -> Task | None:
    """Return the certified task that `strip_task` put into ``task``; None without one, RecordError if it changed."""
    text = text_or_empty(task.extra.get(CERTIFIED_FIELD)) or _from_file(task.extra)
    if not text:
        return None
    try:
        certified = Task.model_validate_json(text)
    except ValueError as error:
        raise RecordError(f"{CERTIFIED_FIELD} is no task of this version: {error}") from error
    covered = ("id", "issue", "gold_patch", "fail_to_pass", "pass_to_pass")
    changed = [name for name in covered if getattr(task, name) != getattr(certified, name)]
    if changed:
        names = ", ".join(changed).replace("_", " ")
        raise RecordError(
            f"{names} changed since the export, which the certificate does not cover; remove {CERTIFIED_FIELD} to "
            "import it as an unbuilt task"
        )
    return certified


def _from_file(extra: Fields) -> str:
    try:
        stored = json.loads(text_or_empty(extra.get(EXTRA_FILE)) or "{}")
    except ValueError:
        return ""
    return text_or_empty(stored.get(CERTIFIED_FIELD)) if isinstance(stored, dict) else ""


def export_dataset(
    store: TaskStore,
    output: Path,
    form: Format,
    layout: Layout,
    layers: LayerStore | None = None,
    report: Callable[[int], None] = lambda num_done: None,
) -> ExportSummary:
    """Write every task of ``store`` to ``output``; ``report`` gets the number of tasks so far.

    Raises:
        InputError: there are no tasks, or ``output`` cannot be used.
        IndexUnavailableError: the tree of a certified task is not here and no index answers.
    """
    summary = ExportSummary()
    records = _records(store, form, layers or LayerStore(), summary, report)
    if form.name == "swe_bench_5":
        write_task_folders(output / "tasks", ((task.id, fields) for task, fields in records))
        (output / REPO_FILE).write_text(task_repo_file({"test", *summary.splits}), encoding="utf-8")
    elif form.is_folder:
        write_task_folders(output, ((task.id, fields) for task, fields in records))
    else:
        write_rows(output, layout, ((task.split or "train", fields) for task, fields in records))
    return summary


def _records(
    store: TaskStore, form: Format, layers: LayerStore, summary: ExportSummary, report: Callable[[int], None]
) -> Iterator[tuple[UnbuiltTask, Fields]]:
    """Yield every task with its record, certified ones first; add failures to ``summary``."""
    tasks: Iterable[Task | UnbuiltTask] = chain(store.load_certified(), store.iter_left_unbuilt())
    seen: set[str] = set()
    for number, task in enumerate(tasks, 1):
        name = folder_name(task.id) if form.is_folder else task.id
        try:
            if name in seen:
                raise RecordError("an earlier task has this id")
            if isinstance(task, Task):
                record = _certified_record(task, pinned_tree(task, layers), form)
            else:
                record = task, form.write(task, is_from_folder=FORMATS[task.format].is_folder)
        except RecordError as error:
            summary.refused[task.id] = str(error)
        else:
            seen.add(name)
            summary.num_written += 1
            summary.splits.add(task.split or "test")
            yield record
        report(number)


def _certified_record(task: Task, tree: Path, form: Format) -> tuple[UnbuiltTask, Fields]:
    stripped = strip_task(task, tree)
    if form.name != "harbor":
        return stripped, form.write(stripped, is_from_folder=False)
    if task.source == "imported" and not task.environment.image:
        raise RecordError(
            "its environment was built from a record without hashes, so that no Dockerfile makes it; write it in "
            "another format, or build the record in its image"
        )
    if reason := _not_by_harbor(task):
        raise RecordError(f"{reason}; write it in another format")
    on_image = stripped.model_copy(update={"image": base_image(task)})
    return stripped, form.write(on_image, is_from_folder=False) | certified_files(task, tree)


def _not_by_harbor(task: Task) -> str:
    """Return why no Dockerfile with the lock makes an environment of ``task``; empty where one does."""
    lock, package = task.environment.lock, task.provenance.package
    if task.runner.type not in ("pytest", "own_pytest"):
        return f"its tests are run by {task.runner.type}, and the verifier of a folder runs pytest"
    if task.environment.image:
        return ""
    if is_npm_lock(lock):
        return "its environment is made by npm, and the Dockerfile of a folder installs with pip"
    if DEBIAN_HEAD in lock:
        return "its environment has a toolchain from Debian packages, which pip does not install"
    if WHEELHOUSE_HEAD in lock:
        return "its environment has a wheelhouse, versions next to each other, which pip does not install"
    # Sandboxes take the package out of the environment; an image would show the repaired code to the agent.
    if canonicalize_name(package) in pinned_versions(lock):
        return f"its lock installs {package} itself, so that the image would hold the repaired code"
    return ""
