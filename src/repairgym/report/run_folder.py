"""What a report reads from a run folder besides ``run.db``.

Reads ``config.toml`` or ``configs/`` (resolved configuration) and the task folder ``tasks/``; makes plain values.
Invariants: only ``run.db`` is required; what is absent is empty, what is there and cannot be read is an error.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repairgym.config.evaluation import MatrixConfig
from repairgym.config.loading import load_config
from repairgym.errors import InputError
from repairgym.records import Record, Task
from repairgym.rollout.names import CONFIGS_FOLDER
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TASKS_FILE, TaskStore

CONFIG_FILE = "config.toml"
DATABASE_FILE = "run.db"
MATRIX_FILE = "matrix.toml"
TASKS_FOLDER = "tasks"


class Funnel(Record):
    """How many candidates each stage of task making left."""

    by_source: dict[str, dict[str, int]]
    """Task source -> stage or reason of rejection -> number, largest first."""
    splits: dict[str, int]
    """``<source>/<split>`` -> number of tasks."""


def read_config(folder: Path) -> dict[str, Any]:
    """The resolved configuration; of a run without ``config.toml`` those of its commands by their names, if any.

    Raises:
        InputError: a file is no TOML.
    """
    path = folder / CONFIG_FILE
    if path.is_file():
        return _read_toml(path)
    return {one.stem: _read_toml(one) for one in sorted((folder / CONFIGS_FOLDER).glob("*.toml"))}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML ({error}); restore the file that the run wrote") from error


def read_matrix_config(folder: Path) -> MatrixConfig | None:
    """What `repairgym eval matrix` ran in this folder; None when it did not.

    Raises:
        InputError: the file is no matrix configuration.
    """
    path = folder / MATRIX_FILE
    return load_config(MatrixConfig, path) if path.is_file() else None


def read_tasks(folder: Path) -> dict[str, Task]:
    """Task id -> task; empty when the run has no task file.

    Raises:
        InputError: a line is no task.
    """
    if not (folder / TASKS_FOLDER / TASKS_FILE).is_file():
        return {}
    return {task.id: task for task in TaskStore(folder / TASKS_FOLDER).load()}


def task_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the task file, and the digest of the catalogue that it was made from."""
    tasks = folder / TASKS_FOLDER / TASKS_FILE
    manifest = TaskStore(folder / TASKS_FOLDER).load_document(MANIFEST_FILE)
    found = {}
    if tasks.is_file():
        found["tasks"] = hashlib.sha256(tasks.read_bytes()).hexdigest()
    found["catalogue"] = str(manifest.get("catalogue", ""))
    return {name: digest for name, digest in found.items() if digest}


def read_funnel(folder: Path) -> Funnel | None:
    """The funnel of task making; None when the run left none.

    Raises:
        InputError: the file is no JSON.
    """
    if not (folder / TASKS_FOLDER / FUNNEL_FILE).is_file():
        return None
    content = TaskStore(folder / TASKS_FOLDER).load_document(FUNNEL_FILE)
    by_source = {source: _largest_first(counts) for source, counts in content.get("total", {}).items()}
    return Funnel(by_source=by_source, splits=content.get("splits", {}))


def _largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
