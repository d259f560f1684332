"""Fixtures of command tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.records import Task
from repairgym.tasks.store import TaskStore


@pytest.fixture
def task_folder(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of mutations to train on, and one to validate with."""
    store = TaskStore(tmp_path_factory.mktemp("tasks"))
    store.save([task, task.model_copy(update={"id": "to-validate", "split": "validation"})], {}, {})
    return store.folder
