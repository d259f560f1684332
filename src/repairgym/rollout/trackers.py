"""Other places that get a run's metrics: a JSON lines file, TensorBoard, Weights & Biases.

Reads what `RunStore.add_metrics` stored; makes files or calls a service. Invariants: the run store stays the record, a
tracker is a copy of it; metrics reach a tracker after they are stored; a resumed step is sent again, and the last value
counts. A new tracker is a context manager that yields a `Listener`, a line in `TRACKERS` and a name in
`config.watch.TrackerName`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from repairgym.config.rollout import WatchConfig
from repairgym.errors import ConfigError, disk_full_as_repairgym_error, install_hint
from repairgym.rollout.connection import Listener
from repairgym.rollout.store import RunStore


@contextmanager
def jsonl_tracker(folder: Path, config: WatchConfig) -> Iterator[Listener]:
    """``metrics.jsonl`` in the run folder: one object per step: ``phase``, ``step``, metrics (null: not finite)."""
    path = folder / "metrics.jsonl"

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"phase": phase, "step": step, **finite})
        with disk_full_as_repairgym_error(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    yield log


@contextmanager
def tensorboard_tracker(folder: Path, config: WatchConfig) -> Iterator[Listener]:
    """Event files in ``tensorboard/`` of the run folder; scalars are named ``phase/metric``."""
    writer = _import("tensorboardX", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(f"{phase}/{name}", value, step)

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def wandb_tracker(folder: Path, config: WatchConfig) -> Iterator[Listener]:
    """A run of Weights & Biases with the folder's name, which a resumed run continues; each phase has its own steps."""
    name = folder.resolve().name
    wandb = _import("wandb", "wandb")
    run = wandb.init(project=config.project, name=name, id=name, resume="allow", dir=str(folder))

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        run.log({f"{phase}/step": step, **{f"{phase}/{name}": value for name, value in values.items()}})

    try:
        yield log
    finally:
        run.finish()


TRACKERS: Mapping[str, Callable[[Path, WatchConfig], AbstractContextManager[Listener]]] = {
    "jsonl": jsonl_tracker,
    "tensorboard": tensorboard_tracker,
    "wandb": wandb_tracker,
}


@contextmanager
def tracking(store: RunStore, config: WatchConfig) -> Iterator[None]:
    """Within, the trackers get every metric that ``store`` gets; `ConfigError` if a package is not installed."""
    with ExitStack() as stack:
        for name in config.trackers:
            log = stack.enter_context(TRACKERS[name](store.path.parent, config))
            stack.enter_context(store.listening(log))
        yield


def _import(module: str, extra: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ConfigError(
            f"watch.trackers names {extra!r}, but {module} is not installed; {install_hint(extra)}, or leave it out"
        ) from error
