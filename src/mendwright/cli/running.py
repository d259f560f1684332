"""Opening a run folder for a command: store, tasks, workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mendwright.cli.progress import ProgressDisplay
from mendwright.config.rollout import RolloutConfig
from mendwright.config.watch import WatchConfig
from mendwright.errors import InputError
from mendwright.recipes.run import Run, locked
from mendwright.rollout.jobs import PolicyRef
from mendwright.rollout.pool import WorkerPool
from mendwright.rollout.store import RunStore
from mendwright.rollout.trackers import tracking
from mendwright.rollout.worker import WorkerSetup, is_scripted
from mendwright.tasks.store import TaskStore


@contextmanager
def open_run(
    folder: Path, tasks: Path, model: Path, rollout: RolloutConfig, seed: int, watch: WatchConfig | None = None
) -> Iterator[Run]:
    """A run over ``tasks``, locked; the folder and its store are made when they are missing.

    Raises:
        InputError: no tasks, ``model`` is no model folder, or another process works on the run.
        ConfigError: a tracker of ``watch`` is not installed.
    """
    from mendwright.models.loading import load_tokenizer

    load_tokenizer(model)
    known = {task.id: task for task in TaskStore(tasks).load()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.db"
    with (
        locked(folder),
        RunStore.open(path) if path.exists() else RunStore.create(path) as store,
        tracking(store, watch or WatchConfig()),
        WorkerPool(WorkerSetup(rollout, str(model))) as pool,
        ProgressDisplay(folder) as progress,
    ):
        yield Run(folder, store, pool, known, seed, progress, rollout.sandbox)


def policy_of(name: str, temperature: float) -> PolicyRef:
    """A scripted policy by name, or a model folder.

    Raises:
        InputError: neither.
    """
    if is_scripted(name):
        return PolicyRef(name)
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"got policy {name!r}, expected a model folder or oracle, submit-at-once, random or teacher")
    return PolicyRef(folder.name, str(folder), 0, temperature)


def import_checkpoint(run: Run, source: Path, stage: str) -> None:
    """Copy a model folder into the run as checkpoint ``stage``, unless it is there."""
    target = run.checkpoint(stage)
    if not target.exists():
        shutil.copytree(source, target)
