"""Other places that get a run's metrics: a JSON lines file, TensorBoard, Weights & Biases.

Reads what `MeasurementTables.add_metrics` stored; makes files or calls a service. Invariants: the run store stays the
record, a tracker is a copy of it; metrics reach a tracker after they are stored; a resumed step is sent again, and the
last value counts. A new tracker is a class, a line in `TRACKERS` and a name in `config.watch.TrackerName`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from repairgym.config.rollout import WatchConfig
from repairgym.errors import ConfigError, disk_full_as_repairgym_error, install_hint
from repairgym.rollout.phases import MeasurementTables


class Tracker(Protocol):
    """Somewhere that metrics go."""

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Write what is not written yet."""
        ...


class JsonlTracker:
    """``metrics.jsonl`` in the run folder: one object per step: ``phase``, ``step``, metrics (null: not finite)."""

    def __init__(self, folder: Path, config: WatchConfig) -> None:
        self._path = folder / "metrics.jsonl"

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Append a line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"phase": phase, "step": step, **finite})
        with disk_full_as_repairgym_error(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self) -> None:
        """Each line is written at once."""


class TensorBoardTracker:
    """Event files in ``tensorboard/`` of the run folder; scalars are named ``phase/metric``."""

    def __init__(self, folder: Path, config: WatchConfig) -> None:
        writer = _import("tensorboardX", "tensorboard")
        self._writer = writer.SummaryWriter(str(folder / "tensorboard"))

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._writer.add_scalar(f"{phase}/{name}", value, step)

    def close(self) -> None:
        """Flush the event file."""
        self._writer.close()


class WandbTracker:
    """A run of Weights & Biases, named and identified by the run folder, so that a resumed run continues it."""

    def __init__(self, folder: Path, config: WatchConfig) -> None:
        wandb = _import("wandb", "wandb")
        name = folder.resolve().name
        self._run = wandb.init(project=config.project, name=name, id=name, resume="allow", dir=str(folder))

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Log the step; phases count their steps apart, so the step is a metric, too."""
        self._run.log({f"{phase}/step": step, **{f"{phase}/{name}": value for name, value in values.items()}})

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path, WatchConfig], Tracker]] = {
    "jsonl": JsonlTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}


@contextmanager
def tracking(store: MeasurementTables, config: WatchConfig) -> Iterator[Sequence[Tracker]]:
    """Within, the trackers of ``config`` get every metric that ``store`` gets.

    Raises:
        ConfigError: a tracker's package is not installed.
    """
    with ExitStack() as stack:
        trackers = [TRACKERS[name](store.path.parent, config) for name in config.trackers]
        for tracker in trackers:
            stack.callback(tracker.close)
            stack.enter_context(store.listening(tracker.log))
        yield trackers


def _import(module: str, extra: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ConfigError(
            f"watch.trackers names {extra!r}, but {module} is not installed; {install_hint(extra)}, or leave it out"
        ) from error
