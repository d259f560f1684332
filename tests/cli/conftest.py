"""Fixtures of command tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.cli.main import main
from repairgym.records import Task
from repairgym.tasks.store import TaskStore


@pytest.fixture
def task_folder(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of mutations to train on, and one to validate with."""
    store = TaskStore(tmp_path_factory.mktemp("tasks"))
    store.save([task, task.model_copy(update={"id": "to-validate", "split": "validation"})], {}, {})
    return store.folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command line in this process; returns its exit code and all that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    return run
