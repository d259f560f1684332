"""One rollout worker as a Ray actor.

Reads a `WorkerOrder`, then requests, each with one of its jobs; returns `Reply` records. Guarantees: layers and weights
arrive as parcels in this node's own layer store, nothing is built here; errors are returned, so an exception of a call
means that the worker or its node is gone.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from repairgym.bridges.ray.connection import require_ray, this_node
from repairgym.bridges.ray.layer_transfer import MODELS, LayerParcels, Parcel, RemoteRequest, receive
from repairgym.bridges.ray.node_checks import Installation, find_problems, raise_problems
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import RepairGymError
from repairgym.process_pool import WorkerFailure
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.workers import RolloutWorker, WorkReport
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.store import LayerStore


@dataclass(frozen=True)
class WorkerOrder:
    """Configuration, tokenizer and expected installation of a worker."""

    config: RolloutConfig
    tokenizer: Parcel
    installation: Installation
    """The driver's."""


@dataclass(frozen=True)
class Reply:
    """The outcome of one job."""

    outcome: Trajectory | WorkerFailure
    report: WorkReport


class EpisodeActor:
    """Becomes an actor by ``ray.remote``."""

    def __init__(self) -> None:
        """Do nothing that can fail: `start` reports errors."""
        self._layers: dict[str, TaskLayers] = {}
        self._model = ""

    async def start(self, order: WorkerOrder) -> str | WorkerFailure:
        """Make the worker; returns the name of its node."""
        self._node = this_node(require_ray())
        try:
            torch.set_num_threads(1)
            self._store = LayerStore(config=order.config.layers)
            problems = await asyncio.to_thread(find_problems, order.installation, order.config.sandbox)
            raise_problems({"this node": problems})
            tokenizer = await self._receive(order.tokenizer)
            self._worker = RolloutWorker(order.config, tokenizer, lambda task: self._layers[task.id])
        except Exception as error:
            return self._describe(error)
        return self._node

    async def ping(self) -> None:
        """Show that the worker is alive."""

    async def run(self, remote: RemoteRequest, job: EpisodeJob) -> Reply:
        """Run one job of a request."""
        try:
            request = replace(remote.request, jobs=(job,))
            await self._prepare(request.tasks[job.task_id], remote.layers[job.task_id])
            if remote.model is not None:
                folder = await self._receive(remote.model)
                self._release_older_model(remote.model.digest)
                request = replace(request, policy=replace(request.policy, folder=str(folder)))
            (trajectory,) = [trajectory async for trajectory in self._worker.run(request)]
        except Exception as error:
            return Reply(self._describe(error), WorkReport(1))
        return Reply(trajectory, self._worker.report(1))

    async def close(self) -> None:
        """End sandboxes and engine: containers would outlive this process."""
        await self._worker.close()

    async def _prepare(self, task: Task, parcels: LayerParcels) -> None:
        if task.id not in self._layers:
            environment, tree = await self._receive(parcels.environment), await self._receive(parcels.tree)
            self._layers[task.id] = TaskLayers(environment, tree)

    async def _receive(self, parcel: Parcel) -> Path:
        # In a thread: other episodes continue while it arrives and is unpacked.
        return await asyncio.to_thread(receive, parcel, self._store, require_ray().get)

    def _release_older_model(self, digest: str) -> None:
        """Delete the older weights, which no request uses any more; otherwise each iteration would leave a copy."""
        if self._model not in ("", digest):
            self._store.release(MODELS, self._model)
        self._model = digest

    def _describe(self, error: Exception) -> WorkerFailure:
        """Describe an error, with the name of this node."""
        if isinstance(error, RepairGymError):
            error.args = (f"{self._node}: {error}",)
        else:
            error.add_note(f"on {self._node}")
        return WorkerFailure.of(error)
