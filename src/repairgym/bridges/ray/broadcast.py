"""What the driver sends to the nodes: tasks with their layers, the tokenizer, the weights.

Reads the layer store and model folders of this machine; makes `RemoteRequest` records. Invariants: each layer and each
version of the weights goes into the object store once; of the weights only the newest version stays there.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from repairgym.bridges.ray.layer_transfer import Parcel, send_layer, send_model
from repairgym.bridges.ray.worker import LayerParcels, RemoteRequest
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.worker import WorkerSetup, WorkRequest
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


class Sending:
    """What has gone into the object store, by digest."""

    def __init__(self, put: Any, setup: WorkerSetup) -> None:
        """``put``: hands an object to the object store and returns its reference."""
        self._put = put
        self._setup = setup
        self._store = LayerStore(Path(setup.cache_root) if setup.cache_root else None, config=setup.config.layers)
        self._layers: dict[Path, Parcel] = {}
        self._tasks: dict[str, LayerParcels] = {}
        self._model: tuple[tuple[str, int], Parcel] | None = None

    def tokenizer(self) -> Parcel:
        """The tokenizer's folder without weights."""
        with tempfile.TemporaryDirectory(prefix="repairgym-tokenizer-") as folder:
            for path in Path(self._setup.tokenizer_folder).iterdir():
                if path.is_file() and path.suffix not in _WEIGHTS:
                    shutil.copy(path, folder)
            return send_model(Path(folder), self._put)

    def prepare(self, request: WorkRequest) -> RemoteRequest:
        """``request`` with its layers, built here when they are missing, and its weights.

        Raises:
            IndexUnavailableError: a layer is missing and no index answers.
            TaskError: the layers of a task cannot be made.
        """
        layers = {task_id: self._of_task(task) for task_id, task in request.tasks.items()}
        return RemoteRequest(request, layers, self._weights(request.policy))

    def _of_task(self, task: Task) -> LayerParcels:
        if task.id not in self._tasks:
            found = task_layers(task, self._store)
            self._tasks[task.id] = LayerParcels(self._layer(found.environment), self._layer(found.tree))
        return self._tasks[task.id]

    def _layer(self, layer: Path) -> Parcel:
        if layer not in self._layers:
            self._layers[layer] = send_layer(layer, self._put)
        return self._layers[layer]

    def _weights(self, policy: PolicyRef) -> Parcel | None:
        if not policy.folder:
            return None
        key = policy.folder, policy.version
        if self._model is None or self._model[0] != key:
            # The parcel of the version before is dropped, and with it its place in the object store.
            self._model = key, send_model(Path(policy.folder), self._put)
        return self._model[1]
