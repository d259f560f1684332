"""Connection to a Ray cluster, the room on its nodes, and the checks of a node: equal versions, a sandbox that starts.

Guarantees: Ray is imported here and nowhere else; an existing connection is used and left open; errors of Ray while
connecting, and problems of a node, say what to do.
"""

import hashlib
import logging
import math
import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

import repairgym
from repairgym.config.cluster import LOCAL, ClusterConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ClusterError, ConfigError, SandboxUnavailableError, install_hint
from repairgym.records import Record
from repairgym.sandbox.probe import BACKENDS, ISOLATING_BACKENDS, BackendProbe, probe_backend
from repairgym.sizing.workers import Host
from repairgym.tasks.layers.environments import base_python


class Node(Record):
    """A live node of the cluster."""

    id: str
    name: str
    resources: dict[str, float]
    """Ray's: ``CPU``, ``GPU``, ``memory`` (bytes), custom ones."""

    def num_places(self, demand: Mapping[str, float]) -> int:
        """Return the number of workers of this demand that an empty node holds."""
        return min(math.floor(self.resources.get(name, 0.0) / amount) for name, amount in demand.items() if amount)

    def host(self, sandbox_resource: str) -> Host:
        """Return what an empty node offers to rollouts."""
        offered = self.resources
        return Host(offered.get("CPU", 0.0), int(offered.get("memory", 0)), int(offered.get(sandbox_resource, 0)))


def require_ray() -> Any:
    """Return the module ``ray``; `ConfigError` where it is not installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"a cluster needs Ray, which cannot be imported ({error}); {install_hint('ray')}, or leave out "
            "cluster.address"
        ) from error


@contextmanager
def connected(cluster: ClusterConfig, rollout: RolloutConfig) -> Iterator[Any]:
    """Connect to the cluster and yield the module ``ray``; ``local`` starts one that holds the workers of ``rollout``.

    `ClusterError`: no answer at the address, or another version of Ray or Python there.
    """
    ray = require_ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        start_client(
            lambda: ray.init(
                address=cluster.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **_local_options(cluster, rollout),
            )
        )
    except ImportError as error:
        raise ConfigError(f"Ray's client cannot be imported ({error}); {install_hint('ray')}") from error
    except (OSError, RuntimeError, TimeoutError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(_no_connection(cluster.address, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def start_client(init: Callable[[], object]) -> None:
    """Call ``init``, again where the head answers and its process for this client ended at its start.

    Ray 2.60 forks that process from one with threads, which fails now and then.
    """
    for is_last in (False, False, True):
        try:
            init()
            return
        except ConnectionAbortedError:
            if is_last:
                raise


def _no_connection(address: str, error: Exception) -> str:
    if address == LOCAL:
        return f"Ray does not start on this machine: {in_one_line(error)}; look at its logs, by default below /tmp/ray"
    return (
        f"no connection to the Ray cluster at {address}: {in_one_line(error)}. Start one with `ray start --head`, name "
        "the one that runs, and use the same Ray and Python there and here"
    )


def in_one_line(error: Exception) -> str:
    """Return an error of Ray's in one line of at most 400 characters."""
    return " ".join(str(error).split())[:400]


def _local_options(cluster: ClusterConfig, rollout: RolloutConfig) -> dict[str, Any]:
    if cluster.address != LOCAL:
        return {}
    demand = worker_demand(cluster, rollout)
    total = {name: amount * rollout.num_workers for name, amount in demand.items()}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no report that this command runs
    options: dict[str, Any] = {"num_cpus": math.ceil(total.pop("CPU")), "resources": total, "include_dashboard": False}
    if cluster.object_store_bytes:
        options["object_store_memory"] = cluster.object_store_bytes
    if cluster.temp_folder:
        options["_temp_dir"] = cluster.temp_folder
    return options


def worker_demand(cluster: ClusterConfig, rollout: RolloutConfig) -> dict[str, float]:
    """Return the resources of one worker."""
    return {"CPU": cluster.num_cpus, cluster.sandbox_resource: float(rollout.max_sandboxes)}


def this_node(ray: Any) -> str:
    """Return the name of the node that this process, a worker of Ray, runs on."""
    node_id = ray.get_runtime_context().get_node_id()
    return node_name(socket.gethostname(), ray.util.get_node_ip_address(), node_id)


def node_name(host: str, address: str, node_id: str) -> str:
    """Return the name of a node in messages: several may share a host."""
    return f"{host} ({address}, {node_id[:8]})"


def live_nodes(ray: Any) -> list[Node]:
    """Return the live nodes of the cluster, by name."""
    nodes = [
        Node(
            id=node["NodeID"],
            name=node_name(node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]),
            resources={name: float(amount) for name, amount in node["Resources"].items()},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda node: node.name)


def require_room(nodes: Sequence[Node], cluster: ClusterConfig, rollout: RolloutConfig) -> None:
    """Raise `ClusterError` where the workers do not fit on the nodes and no more nodes may join."""
    demand = worker_demand(cluster, rollout)
    places = sum(node.num_places(demand) for node in nodes)
    if places >= rollout.num_workers or cluster.is_autoscaling:
        return
    name = cluster.sandbox_resource
    offered = "; ".join(
        f"{node.name}: {node.resources.get(name, 0.0):g} {name}, {node.resources.get('CPU', 0.0):g} CPU"
        for node in nodes
    )
    raise ClusterError(
        f"{rollout.num_workers} workers of {rollout.max_sandboxes} {name} and {cluster.num_cpus:g} CPU each, room for "
        f"{places} ({offered}); start nodes with `ray start --address=HEAD:6379 --resources='{{\"{name}\": NUMBER}}'`, "
        f"set rollout.num_workers={max(places, 1)} or less rollout.max_sandboxes, or cluster.is_autoscaling=true where "
        "nodes join on demand"
    )


ProblemKind = Literal["sandbox", "version", "layer", "clock", "capacity", "answer"]


class Problem(Record):
    """One reason to reject a node."""

    kind: ProblemKind
    text: str
    """Actual and expected state."""
    remedy: str
    """Advice, with the command where there is one."""

    def __str__(self) -> str:
        """One sentence for an error message."""
        return f"{self.text}; {self.remedy}"


class Installation(Record):
    """Versions and paths that have to be equal on all nodes of a run."""

    python: str
    python_path: str
    """The interpreter that environments point at: they are sent unchanged."""
    repairgym: str
    code_digest: str
    """SHA-256 over the sources of repairgym: two checkouts may have one version."""
    ray: str


@cache
def describe_installation() -> Installation:
    """Return the installation of this machine."""
    return Installation(
        python=platform.python_version(),
        python_path=str(base_python()),
        repairgym=repairgym.__version__,
        code_digest=_code_digest(Path(repairgym.__file__).parent),
        ray=metadata.version("ray"),
    )


def _code_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def compare_installations(expected: Installation, actual: Installation) -> list[Problem]:
    """Return the differences of ``actual`` (a node) from ``expected`` (the driver)."""
    remedies = {
        "python": f"install Python {expected.python} there, for instance with the image of the driver",
        "python_path": f"put Python {expected.python} at {expected.python_path} there: environments point at it",
        "repairgym": f"{install_hint('ray')} there, version {expected.repairgym}",
        "code_digest": "install the driver's checkout there (pip install .)",
        "ray": f"pip install 'ray[client]=={expected.ray}' there",
    }
    return [
        Problem(
            kind="version",
            text=f"{name} is {getattr(actual, name)[:40]}, expected {getattr(expected, name)[:40]}",
            remedy=remedy,
        )
        for name, remedy in remedies.items()
        if getattr(actual, name) != getattr(expected, name)
    ]


def try_sandbox(config: SandboxConfig) -> list[BackendProbe]:
    """Start the back end of ``config``; with ``auto`` each one in turn, up to the first that works."""
    tried: list[BackendProbe] = []
    names = [name for name in BACKENDS if name in ISOLATING_BACKENDS] if config.backend == "auto" else [config.backend]
    for name in names:
        tried.append(probe_backend(name, config))
        if tried[-1].is_available:
            break
    return tried


def judge_sandbox(tried: Sequence[BackendProbe]) -> list[Problem]:
    """Return the reasons why no sandbox starts; empty when a sandbox starts."""
    if any(probe.is_available and probe.is_isolating for probe in tried):
        return []
    reasons = ", ".join(f"{probe.name}: {probe.reason}" for probe in tried)
    remedies = dict.fromkeys(probe.remedy for probe in tried if probe.remedy)
    return [Problem(kind="sandbox", text=f"no sandbox starts ({reasons})", remedy=". Or: ".join(remedies))]


def find_problems(expected: Installation, sandbox: SandboxConfig) -> list[Problem]:
    """Return the problems of this node for a driver with the installation ``expected``."""
    return compare_installations(expected, describe_installation()) + judge_sandbox(try_sandbox(sandbox))


def raise_problems(problems_by_node: Mapping[str, Sequence[Problem]]) -> None:
    """Raise a `SandboxUnavailableError` where a node cannot make a sandbox, a `ClusterError` for other problems."""
    rejected = {name: problems for name, problems in problems_by_node.items() if problems}
    if not rejected:
        return
    is_sandbox = any(problem.kind == "sandbox" for problems in rejected.values() for problem in problems)
    text = "; ".join(f"{name} is rejected: {'. '.join(map(str, problems))}" for name, problems in rejected.items())
    raise (SandboxUnavailableError if is_sandbox else ClusterError)(text)
