"""Rollout workers as Ray actors on the nodes of a cluster: `EpisodeActor` on a node, `RayWorkers` on the driver.

Guarantees: no episode begins before each node with sandboxes has started a sandbox and shown the driver's versions;
each job is one call of one actor, so it ends as one value or as one loss, never both; an actor returns its errors, so
an exception of a call means that the worker or its node is gone; layers and weights arrive as parcels in the node's own
layer store, nothing is built there; a lost worker is replaced, and Ray (and its autoscaler) sees the demand while it
waits for room; only the driver writes to the run.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from repairgym.bridges.ray.cluster_check import require_fit_nodes
from repairgym.bridges.ray.layer_transfer import MODELS, Broadcast, LayerParcels, Parcel, RemoteRequest, receive
from repairgym.bridges.ray.nodes import (
    Installation,
    connected,
    describe_installation,
    find_problems,
    in_one_line,
    live_nodes,
    raise_problems,
    require_ray,
    require_room,
    this_node,
    worker_demand,
)
from repairgym.config.cluster import LOCAL, ClusterConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ClusterError, RepairGymError
from repairgym.process_pool import WorkerFailure
from repairgym.records import Task, Trajectory
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.workers import JobsLost, Message, RolloutWorker, WorkerSetup, WorkReport, WorkRequest
from repairgym.sizing.workers import describe_workers, size_workers, this_host
from repairgym.tasks.build.validation import TaskLayers, imported_layers
from repairgym.tasks.layers.store import LayerStore

_MIN_CONCURRENCY = 1000
"""Ray's default bound on the concurrent calls of an actor; a worker may hold more."""
_PING_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0


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
    """One rollout worker; becomes an actor by ``ray.remote``. `start`, not the constructor, does what can fail."""

    def __init__(self) -> None:
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
            self._worker = RolloutWorker(order.config, tokenizer, lambda task: self._layers[task.id], self._store)
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
            tree = await self._receive(parcels.tree)
            if parcels.environment is None:
                self._layers[task.id] = await asyncio.to_thread(imported_layers, task, self._store)
            else:
                environment = await self._receive(parcels.environment)
                self._layers[task.id] = TaskLayers(environment, tree, use=task.certificate.use)

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


class RayWorkers:
    """Actors on nodes that Ray selects; their names are numbers."""

    def __init__(self, ray: Any, setup: WorkerSetup, cluster: ClusterConfig) -> None:
        self._ray = ray
        self._setup = setup
        self._cluster = cluster
        self._broadcast = Broadcast(ray.put, setup)
        self._order: Any = None
        self._actors: dict[int, Any] = {}
        self._ready: dict[int, str] = {}
        """Worker -> its node."""
        self._starting: dict[Any, int] = {}
        self._calls: dict[Any, tuple[int, EpisodeJob]] = {}
        self._losses: list[tuple[int, Message]] = []
        """Noticed, not yet reported."""
        self._num_made = 0
        self._num_lost = 0
        self._idle_since_s = time.monotonic()

    def start(self) -> None:
        """Request the missing workers from Ray, also those that were lost while idle; raises as `receive`."""
        self._idle_since_s = time.monotonic()
        self._notice_losses()
        while len(self._actors) < self._setup.config.num_workers:
            self._request_worker()

    def _notice_losses(self) -> None:
        """Find lost workers before they get jobs, which would count as lost although they never began."""
        pings = {self._actors[number].ping.remote(): number for number in self._ready}
        for ping in self._ended(list(pings), _PING_TIMEOUT_S, len(pings)) if pings else ():
            try:
                self._ray.get(ping)
            except self._ray.exceptions.RayError as error:
                self._losses += self._lose(pings[ping], error)

    def _request_worker(self) -> None:
        if self._order is None:
            tokenizer = self._broadcast.tokenizer()
            self._order = self._ray.put(WorkerOrder(self._setup.config, tokenizer, describe_installation()))
        demand = worker_demand(self._cluster, self._setup.config)
        actor = self._ray.remote(EpisodeActor).options(
            num_cpus=demand.pop("CPU"),
            resources=demand,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=max(_MIN_CONCURRENCY, self._setup.config.max_in_flight),
        )
        number = self._num_made
        self._num_made += 1
        self._actors[number] = actor.remote()
        self._starting[self._actors[number].start.remote(self._order)] = number

    def ready(self) -> Sequence[Hashable]:
        """Return the started workers in the order of their requests."""
        return sorted(self._ready)

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Send each job of ``request`` as a separate call; shared data enters the object store once."""
        assert isinstance(worker, int)
        remote = self._ray.put(self._broadcast.prepare(request))
        for job in request.jobs:
            self._calls[self._actors[worker].run.remote(remote, job)] = worker, job

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
        """Yield the messages of all workers whose calls have ended.

        Raises:
            ClusterError: no worker for `start_timeout_s`, more than `max_lost_workers` lost, or a worker cannot start.
            SandboxUnavailableError: the node of a worker cannot make sandboxes.
            RepairGymError: a worker broke.
        """
        while self._losses:
            yield self._losses.pop(0)
        for call in self._ended([*self._starting, *self._calls], timeout_s):
            if call in self._starting:
                self._finish_start(call)
            elif call in self._calls:
                yield from self._finish(call)
        self._check_start_timeout()

    def _ended(self, waiting: list[Any], timeout_s: float, num_awaited: int = 1) -> list[Any]:
        """Return all ended calls, as soon as ``num_awaited`` have ended or the time is over."""
        try:
            self._ray.wait(waiting, num_returns=num_awaited, timeout=timeout_s)
            return list(self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0])
        except ConnectionError as error:
            raise ClusterError(
                f"the connection to the cluster is lost ({in_one_line(error)}); run the same command again to resume"
            ) from error

    def _finish_start(self, call: Any) -> None:
        number = self._starting.pop(call)
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise ClusterError(f"a worker cannot start: {in_one_line(error)}; try `repairgym cluster check`") from error
        except self._ray.exceptions.RayError as error:
            self._replace(number, error)
            return
        if isinstance(answer, WorkerFailure):
            raise answer.error or RepairGymError(answer.message)
        self._ready[number] = answer

    def _finish(self, call: Any) -> Iterator[tuple[int, Message]]:
        number, _ = self._calls[call]
        try:
            reply = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            # Not a loss: the actor returns errors, so its own code has failed.
            raise RepairGymError(f"a rollout worker broke: {error}") from error
        except self._ray.exceptions.RayError as error:
            yield from self._lose(number, error)
            return
        del self._calls[call]
        yield from _unpacked(number, reply)

    def _lose(self, number: int, cause: Exception) -> Iterator[tuple[int, Message]]:
        """Take the finished jobs of a lost worker, and return the others as lost."""
        jobs = []
        for call in [call for call, (owner, _) in self._calls.items() if owner == number]:
            _, job = self._calls.pop(call)
            try:
                reply = self._ray.get(call, timeout=0)
            except self._ray.exceptions.RayError:
                jobs.append(job)
            else:
                yield from _unpacked(number, reply)
        reason = f"worker {number} on {self._ready[number]} was lost: {in_one_line(cause)}"
        yield number, JobsLost(tuple(jobs), reason)
        self._replace(number, cause)

    def _replace(self, number: int, cause: Exception) -> None:
        self._num_lost += 1
        if self._num_lost > self._cluster.max_lost_workers:
            raise ClusterError(
                f"{self._num_lost} workers were lost, last: {in_one_line(cause)}; check the nodes (`repairgym cluster "
                "check`, `ray status`), then run the same command again to resume"
            )
        self._ready.pop(number, None)
        # It may still run where only the connection was lost; its results are ignored.
        with suppress(Exception):
            self._ray.kill(self._actors[number], no_restart=True)
        del self._actors[number]
        self._request_worker()

    def _check_start_timeout(self) -> None:
        if self._ready:
            self._idle_since_s = time.monotonic()
        waited_s = time.monotonic() - self._idle_since_s
        if waited_s > self._cluster.start_timeout_s:
            demand = worker_demand(self._cluster, self._setup.config)
            nodes = "; ".join(f"{node.name}: {node.resources}" for node in live_nodes(self._ray)) or "none"
            raise ClusterError(
                f"no worker for {waited_s:.0f} s; each needs {demand}, live nodes: {nodes}. Look at `ray status` "
                "for other users, add nodes or raise cluster.start_timeout_s, then run the same command again"
            )

    def close(self) -> None:
        """Close all workers, then kill them; safe to call twice."""
        with suppress(Exception):
            closing = [self._actors[number].close.remote() for number in self._ready]
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT_S)
        for actor in self._actors.values():
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        self._actors.clear()
        self._ready.clear()
        self._starting.clear()
        self._calls.clear()


def _unpacked(number: int, reply: Reply) -> Iterator[tuple[int, Message]]:
    yield number, reply.outcome
    yield number, reply.report


@contextmanager
def open_ray_pool(
    setup: WorkerSetup, cluster: ClusterConfig, on_loss: Callable[[str], None], on_size: Callable[[str], None]
) -> Iterator[WorkerPool]:
    """Open a pool of workers on a cluster.

    ``on_loss`` receives a message for each lost worker, ``on_size`` one on the workers that were asked for as ``auto``.
    Raises as `connected`, `require_room` and `require_fit_nodes`.
    """
    asked = setup.config
    if cluster.address == LOCAL:
        setup = replace(setup, config=size_workers(asked, [this_host()], cpus_per_worker=cluster.num_cpus))
    with connected(cluster, setup.config) as ray:
        nodes = live_nodes(ray)
        hosts = [node.host(cluster.sandbox_resource) for node in nodes]
        setup = replace(setup, config=size_workers(setup.config, hosts, cpus_per_worker=cluster.num_cpus))
        on_size(describe_workers(asked, setup.config, hosts))
        require_room(nodes, cluster, setup.config)
        require_fit_nodes(ray, nodes, cluster, setup.config.sandbox)
        with WorkerPool(setup, RayWorkers(ray, setup, cluster), on_loss) as pool:
            yield pool
