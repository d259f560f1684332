"""The pool of a command: workers on a cluster where one is named, processes of this machine otherwise.

Reads :class:`~repairgym.config.cluster.ClusterConfig`; makes a `WorkerPool`. Invariant: no episode begins on a cluster
before each node that can hold sandboxes has started one and shown the driver's versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from repairgym.bridges.ray.cluster_check import refuse_unfit_nodes
from repairgym.bridges.ray.connection import connected, live_nodes, require_room
from repairgym.bridges.ray.workers import RayWorkers
from repairgym.config.cluster import ClusterConfig
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.worker import WorkerSetup


@contextmanager
def open_pool(setup: WorkerSetup, cluster: ClusterConfig, on_loss: Callable[[str], None]) -> Iterator[WorkerPool]:
    """The workers of one command; ``on_loss`` hears of each one that is lost.

    Raises:
        ConfigError: Ray is needed and not installed.
        ClusterError: the cluster cannot be reached, is too small, or a node has other versions.
        SandboxUnavailableError: a node that shall hold sandboxes cannot make one.
    """
    if not cluster.is_used:
        with WorkerPool(setup) as pool:
            yield pool
        return
    with connected(cluster, setup.config) as ray:
        nodes = live_nodes(ray)
        require_room(nodes, cluster, setup.config)
        refuse_unfit_nodes(ray, nodes, cluster, setup.config.sandbox)
        with WorkerPool(setup, RayWorkers(ray, setup, cluster), on_loss) as pool:
            yield pool
