"""Files of a run folder next to ``run.db``.

Reads ``fitted.toml``, ``config.toml`` or ``configs/`` (resolved configuration) and the task folder ``tasks/``; makes
plain values.
Guarantees: only ``run.db`` is required; an absent file is empty, an unreadable one is an `InputError`.
"""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

from repairgym.config.commands import MatrixConfig
from repairgym.config.loading import load_config
from repairgym.errors import InputError
from repairgym.records import Record, Task
from repairgym.rollout.names import CONFIGS_FOLDER, FITTED_FILE
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TASKS_FILE, TaskStore

CONFIG_FILE = "config.toml"
DATABASE_FILE = "run.db"
MATRIX_FILE = "matrix.toml"
TASKS_FOLDER = "tasks"


class Funnel(Record):
    """Candidates that each filter of task making dropped or kept."""

    by_source: dict[str, dict[str, int]]
    """Task source -> stage or reason of rejection -> number, largest first."""
    splits: dict[str, int]
    """``<source>/<split>`` -> number of tasks."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings that the run used, fitted ones first; without any, those of its commands by name."""
    for path in (folder / FITTED_FILE, folder / CONFIG_FILE):
        if path.is_file():
            return _read_toml(path)
    return {file.stem: _read_toml(file) for file in sorted((folder / CONFIGS_FOLDER).glob("*.toml"))}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}); restore the file that the run wrote") from error


def read_matrix_config(folder: Path) -> MatrixConfig | None:
    """Return the configuration of `repairgym eval matrix` in this folder; None without one."""
    path = folder / MATRIX_FILE
    return load_config(MatrixConfig, path) if path.is_file() else None


def read_tasks(folder: Path) -> dict[str, Task]:
    """Return task id -> task; empty when the run has no task file."""
    if not (folder / TASKS_FOLDER / TASKS_FILE).is_file():
        return {}
    return {task.id: task for task in TaskStore(folder / TASKS_FOLDER).load()}


def task_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the task file, and the digest of its catalog."""
    tasks = folder / TASKS_FOLDER / TASKS_FILE
    digests = {"tasks": hashlib.sha256(tasks.read_bytes()).hexdigest()} if tasks.is_file() else {}
    catalog = TaskStore(folder / TASKS_FOLDER).load_document(MANIFEST_FILE).get("catalogue")
    return digests | ({"catalogue": str(catalog)} if catalog else {})


def read_funnel(folder: Path) -> Funnel | None:
    """Return the funnel of task making; None when the run has none."""
    if not (folder / TASKS_FOLDER / FUNNEL_FILE).is_file():
        return None
    content = TaskStore(folder / TASKS_FOLDER).load_document(FUNNEL_FILE)
    total = content.get("total", {}).items()
    by_source = {name: dict(sorted(counts.items(), key=lambda it: (-it[1], it[0]))) for name, counts in total}
    return Funnel(by_source=by_source, splits=content.get("splits", {}))
