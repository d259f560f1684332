"""Other places that get a run's metrics: a JSON lines file, TensorBoard, Weights & Biases, trackio, MLflow.

Reads what `RunStore.add_metrics` stored, the settings and the calls of the run folder; makes files or calls a service.
Invariants: the run store stays the record, a tracker is a copy of it; metrics reach a tracker after they are stored; a
resumed step is sent again, and the last value counts; the id of a run at its trackers is drawn once and kept in its
folder, so that equal names of folders never meet. A new tracker is a context manager that yields a `Listener`, a line
in `TRACKERS` and a name in `config.watch.TrackerName`.
"""

import json
import math
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairgym.config.loading import flatten
from repairgym.config.rollout import WatchConfig
from repairgym.errors import ConfigError, disk_full_as_repairgym_error, install_hint
from repairgym.rollout.calls import read_calls
from repairgym.rollout.connection import Listener
from repairgym.rollout.names import CONFIGS_FOLDER, FITTED_FILE
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import written_whole

ID_FILE = "tracker-id"
_MAX_PARAMETER_CHARS = 500
_MAX_PARAMETERS = 100


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run that trackers get with its metrics."""

    folder: Path
    name: str
    id: str
    """Of this run folder alone."""
    project: str
    tags: tuple[str, ...]
    config: Mapping[str, str | float]
    """Settings of all calls by dotted key, and what they ran with."""
    summary: Callable[[], dict[str, float]]
    """Results as the store has them when it is called."""


def tracked_run(store: RunStore, config: WatchConfig) -> TrackedRun:
    """Return the run of ``store``; its id is drawn at the first call and kept in the run folder."""
    folder = store.path.parent.resolve()
    path = folder / ID_FILE
    # An empty file is what a full disk left to an older version.
    if not path.is_file() or not path.read_text(encoding="utf-8").strip():
        with written_whole(path) as stream:
            stream.write(f"{folder.name}-{secrets.token_hex(6)}\n".encode())
    return TrackedRun(
        folder=folder,
        name=folder.name,
        id=path.read_text(encoding="utf-8").strip(),
        project=config.project,
        tags=("repairgym", *config.tags),
        config=_settings(folder),
        summary=lambda: summary_of(store),
    )


def _settings(folder: Path) -> dict[str, str | float]:
    settings: dict[str, str | float] = {}
    main = folder / (FITTED_FILE if (folder / FITTED_FILE).is_file() else "config.toml")
    for file in (main, *sorted((folder / CONFIGS_FOLDER).glob("*.toml"))):
        if file.is_file():
            prefix = "" if file.parent == folder else f"{file.stem}."
            values = flatten(tomllib.loads(file.read_text(encoding="utf-8")))
            settings |= {f"{prefix}{name}": _number_or_text(value) for name, value in values}
    for call in read_calls(folder)[-1:]:
        settings |= {"call.command": call.command, "call.version": call.version, "call.commit": call.commit}
    return settings


def _number_or_text(text: str) -> str | float:
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def summary_of(store: RunStore) -> dict[str, float]:
    """Return episodes and pass rate of each phase, over the valid ones, and the newest value of each metric."""
    summary = {}
    for phase, num, num_valid, num_passed in store.phase_totals():
        summary[f"{phase}/num_trajectories"] = float(num)
        if num_valid:
            summary[f"{phase}/pass_rate"] = num_passed / num_valid
    return summary | {f"{phase}/{name}": value for phase, name, value in store.newest_metrics() if math.isfinite(value)}


@contextmanager
def jsonl_tracker(run: TrackedRun) -> Iterator[Listener]:
    """``metrics.jsonl`` in the run folder: one object per step: ``phase``, ``step``, metrics (null: not finite)."""
    path = run.folder / "metrics.jsonl"

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"phase": phase, "step": step, **finite})
        with disk_full_as_repairgym_error(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    yield log


@contextmanager
def tensorboard_tracker(run: TrackedRun) -> Iterator[Listener]:
    """Event files in ``tensorboard/`` of the run folder: scalars ``phase/metric``; config, tags, summary as texts."""
    writer = _import("tensorboardX", "tensorboard").SummaryWriter(str(run.folder / "tensorboard"))
    writer.add_text("config", _table(run.config))
    writer.add_text("tags", ", ".join((run.id, *run.tags)))

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(f"{phase}/{name}", value, step)

    try:
        yield log
    finally:
        writer.add_text("summary", _table(run.summary()))
        writer.close()


def _table(values: Mapping[str, object]) -> str:
    return "\n".join(["| name | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in values.items())])


@contextmanager
def wandb_tracker(run: TrackedRun) -> Iterator[Listener]:
    """A run of Weights & Biases with the folder's name, which a resumed run continues; each phase has its own steps."""
    wandb = _import("wandb", "wandb")
    options = {"config": dict(run.config), "tags": list(run.tags), "dir": str(run.folder)}
    remote = wandb.init(project=run.project, name=run.name, id=run.id, resume="allow", **options)

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        remote.log(_with_step(phase, step, values))

    try:
        yield log
    finally:
        remote.summary.update(run.summary())
        remote.finish()


def _with_step(phase: str, step: int, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{phase}/step": step, **{f"{phase}/{name}": value for name, value in values.items()}}


@contextmanager
def trackio_tracker(run: TrackedRun) -> Iterator[Listener]:
    """A run of trackio, named with the run's id; tags are part of its config, the summary is its last entry."""
    trackio = _import("trackio", "trackio")
    config = {**run.config, "tags": ", ".join(run.tags), "run": run.name}
    remote = trackio.init(project=run.project, name=run.id, config=config, resume="allow")

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        remote.log(_with_step(phase, step, values))

    try:
        yield log
    finally:
        remote.log({f"summary/{name}": value for name, value in run.summary().items()})
        remote.finish()


@contextmanager
def mlflow_tracker(run: TrackedRun) -> Iterator[Listener]:
    """A run of MLflow at ``MLFLOW_TRACKING_URI``, else in ``mlflow.db`` of the run folder; ``phase/metric`` by step."""
    mlflow = _import("mlflow", "mlflow")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(run.project)
    experiment = known.experiment_id if known else client.create_experiment(run.project)
    runs = client.search_runs([experiment], f"tags.`repairgym.id` = '{run.id}'", max_results=1)
    tags = {"repairgym.id": run.id, **{f"repairgym.tag.{tag}": "true" for tag in run.tags}}
    remote = runs[0] if runs else client.create_run(experiment, run_name=run.name, tags=tags)
    key = remote.info.run_id
    entities = mlflow.entities
    # A parameter cannot change once it is there; a resumed run may have other free settings.
    new = [(name, str(value)[:_MAX_PARAMETER_CHARS]) for name, value in run.config.items()]
    new = [(name, value) for name, value in new if name not in remote.data.params]
    for start in range(0, len(new), _MAX_PARAMETERS):
        client.log_batch(key, params=[entities.Param(*item) for item in new[start : start + _MAX_PARAMETERS]])

    def log(phase: str, step: int, values: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [entities.Metric(f"{phase}/{name}", value, now_ms, step) for name, value in values.items()]
        client.log_batch(key, metrics=metrics)

    try:
        yield log
    finally:
        log("summary", 0, run.summary())
        client.set_terminated(key)


TRACKERS: Mapping[str, Callable[[TrackedRun], AbstractContextManager[Listener]]] = {
    "jsonl": jsonl_tracker,
    "tensorboard": tensorboard_tracker,
    "wandb": wandb_tracker,
    "trackio": trackio_tracker,
    "mlflow": mlflow_tracker,
}


@contextmanager
def tracking(store: RunStore, config: WatchConfig) -> Iterator[None]:
    """Within, the trackers get every metric that ``store`` gets; `ConfigError` if a package is not installed.

    A tracker that fails later, as one whose server starts again, ends nothing: the first failure becomes an event.
    """
    with ExitStack() as stack:
        for name in config.trackers:
            stack.enter_context(_copying(store, name, TRACKERS[name](tracked_run(store, config))))
        yield


@contextmanager
def _copying(store: RunStore, name: str, tracker: AbstractContextManager[Listener]) -> Iterator[None]:
    log, is_told = tracker.__enter__(), False

    def note(error: Exception) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            text = f"{name} lacks metrics, which {store.path} has: {type(error).__name__}: {error}"
            store.add_event("tracker_failed", text)

    def tell(phase: str, step: int, values: Mapping[str, float]) -> None:
        try:
            log(phase, step, values)
        except Exception as error:
            note(error)

    try:
        with store.listening(tell):
            yield
    finally:
        try:
            tracker.__exit__(None, None, None)
        except Exception as error:
            note(error)


def _import(module: str, extra: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ConfigError(
            f"watch.trackers names {extra!r}, but {module} is not installed; {install_hint(extra)}, or leave it out"
        ) from error
