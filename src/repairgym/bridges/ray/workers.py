"""Rollout workers as Ray actors on the nodes of a cluster, seen from the driver.

Reads `WorkRequest` messages; makes what the pool reads. Invariants: each job is one call of one actor, so it ends as
one value or as one loss, never both; a lost worker is replaced by another one, whose demand Ray (and its autoscaler)
sees while it waits for room; only the driver writes anything about the run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from repairgym.bridges.ray.broadcast import Sending
from repairgym.bridges.ray.connection import in_one_line, live_nodes, worker_demand
from repairgym.bridges.ray.node_checks import describe_installation
from repairgym.bridges.ray.worker import EpisodeActor, Reply, WorkerOrder
from repairgym.config.cluster import ClusterConfig
from repairgym.errors import ClusterError, RepairGymError
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.worker import WorkerSetup, WorkFailure, WorkRequest
from repairgym.rollout.workers import JobsLost, Message

_MIN_CONCURRENCY = 1000
"""Ray's own bound on the calls that one actor works on; a worker may hold more."""
_PING_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0


class RayWorkers:
    """Actors, each on the node that Ray finds for it; their names are numbers."""

    def __init__(self, ray: Any, setup: WorkerSetup, cluster: ClusterConfig) -> None:
        self._ray = ray
        self._setup = setup
        self._cluster = cluster
        self._sending = Sending(ray.put, setup)
        self._order: Any = None
        self._actors: dict[int, Any] = {}
        self._ready: dict[int, str] = {}
        """Worker -> its node."""
        self._starting: dict[Any, int] = {}
        self._calls: dict[Any, tuple[int, EpisodeJob]] = {}
        self._losses: list[tuple[int, Message]] = []
        """Noticed, and not yet told."""
        self._num_made = 0
        self._num_lost = 0
        self._idle_since_s = time.monotonic()

    def start(self) -> None:
        """Ask Ray for the workers that are missing, also for those that went while there was nothing to do.

        Raises:
            ClusterError: more than `max_lost_workers` lost, or the connection is gone.
        """
        self._idle_since_s = time.monotonic()
        self._notice_losses()
        while len(self._actors) < self._setup.config.num_workers:
            self._ask_for_one()

    def _notice_losses(self) -> None:
        """Jobs given to a worker that is gone would count as lost, although nobody has begun them."""
        pings = {self._actors[number].ping.remote(): number for number in self._ready}
        for ping in self._ended(list(pings), _PING_TIMEOUT_S, len(pings)) if pings else ():
            try:
                self._ray.get(ping)
            except self._ray.exceptions.RayError as error:
                self._losses += self._lose(pings[ping], error)

    def _ask_for_one(self) -> None:
        if self._order is None:
            tokenizer = self._sending.tokenizer()
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
        """Those that have started, in the order in which they were asked for."""
        return sorted(self._ready)

    def give(self, worker: Hashable, request: WorkRequest) -> None:
        """Send each job of ``request`` as a call of its own; what they share goes into the object store once."""
        assert isinstance(worker, int)
        remote = self._ray.put(self._sending.prepare(request))
        for job in request.jobs:
            self._calls[self._actors[worker].run.remote(remote, job)] = worker, job

    def receive(self, busy: Collection[Hashable], timeout_s: float) -> Iterable[tuple[Hashable, Message]]:
        """What has ended, whichever worker did it.

        Raises:
            ClusterError: no worker for `start_timeout_s`, more than `max_lost_workers` lost, or one cannot be made.
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
        self._check_patience()

    def _ended(self, waiting: list[Any], timeout_s: float, num_awaited: int = 1) -> list[Any]:
        """All calls that have ended, as soon as ``num_awaited`` have or the time is over."""
        try:
            self._ray.wait(waiting, num_returns=num_awaited, timeout=timeout_s)
            return list(self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0])
        except ConnectionError as error:
            raise ClusterError(
                f"the connection to the cluster is gone ({in_one_line(error)}); run the same command again: it goes on"
            ) from error

    def _finish_start(self, call: Any) -> None:
        number = self._starting.pop(call)
        try:
            found = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise ClusterError(
                f"a worker cannot be made: {in_one_line(error)}; try `repairgym cluster check`"
            ) from error
        except self._ray.exceptions.RayError as error:
            self._replace(number, error)
            return
        if isinstance(found, WorkFailure):
            raise found.error or RepairGymError(found.message)
        self._ready[number] = found

    def _finish(self, call: Any) -> Iterator[tuple[int, Message]]:
        number, _ = self._calls[call]
        try:
            reply = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            # Not a loss: the actor returns what goes wrong, so its own code has failed.
            raise RepairGymError(f"a rollout worker broke: {error}") from error
        except self._ray.exceptions.RayError as error:
            yield from self._lose(number, error)
            return
        del self._calls[call]
        yield from _unpacked(number, reply)

    def _lose(self, number: int, cause: Exception) -> Iterator[tuple[int, Message]]:
        """Take what a lost worker has still delivered, and give the rest back."""
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
                f"{self._num_lost} workers were lost, the last one: {in_one_line(cause)}; look at the nodes (`repairgym "
                "cluster check`, `ray status`), then run the same command again: it goes on"
            )
        self._ready.pop(number, None)
        # It may live on where only the connection was lost; what it still does is nobody's.
        with suppress(Exception):
            self._ray.kill(self._actors[number], no_restart=True)
        del self._actors[number]
        self._ask_for_one()

    def _check_patience(self) -> None:
        if self._ready:
            self._idle_since_s = time.monotonic()
        waited_s = time.monotonic() - self._idle_since_s
        if waited_s > self._cluster.start_timeout_s:
            demand = worker_demand(self._cluster, self._setup.config)
            nodes = "; ".join(f"{node.name}: {node.resources}" for node in live_nodes(self._ray)) or "none"
            raise ClusterError(
                f"no worker for {waited_s:.0f} s; each asks for {demand}, live nodes: {nodes}. Look at `ray status` "
                "for what others hold, add nodes or raise cluster.start_timeout_s, then run the same command again"
            )

    def close(self) -> None:
        """End all workers, first by their own will; safe to call twice."""
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
