"""Proving a cluster before money is spent on it: what each node really does.

Reads a connected cluster; makes a `ClusterReport`. Invariants: a node speaks for itself (a probe runs on it, whatever
else is busy there), and what does not answer is a problem with a name, never a hang; nothing stays on a node.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mendwright.bridges.ray.connecting import Node, live_nodes, require_ray
from mendwright.bridges.ray.fitness import (
    Installation,
    Problem,
    compare_installations,
    describe_installation,
    find_problems,
    judge_sandbox,
    try_sandbox,
)
from mendwright.bridges.ray.parcels import Parcel, receive, send_layer
from mendwright.config.cluster import ClusterCheckConfig, ClusterConfig
from mendwright.config.sandbox import SandboxConfig
from mendwright.errors import ClusterError, SandboxUnavailableError
from mendwright.records import Record
from mendwright.sandbox.probe import BackendProbe
from mendwright.tasks.layers import LayerStore
from mendwright.tasks.manifests import read_manifest

_NUM_PINGS = 7
_NUM_FILES = 8


class Delivery(Record):
    """How a layer came to a node."""

    num_bytes: int
    entries_digest: str
    """Of what lies there now."""
    transfer_s: float
    """Out of the object store of the driver's side into the node's."""
    unpack_s: float
    """Written and compared with its manifest."""

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of the transfer."""
        return self.num_bytes / max(self.transfer_s, 1e-9)


class Clock(Record):
    """A node's clock against the driver's."""

    offset_s: float
    """The node is ahead by this much, give or take half of ``round_trip_s``."""
    round_trip_s: float
    """Of the fastest question and answer."""


class NodeReport(Record):
    """What one node did when it was asked."""

    name: str
    resources: dict[str, float]
    num_sandboxes: float
    """What it offers of the sandbox resource; 0: no worker comes here, and no sandbox is tried."""
    installation: Installation | None = None
    gpus: tuple[str, ...] = ()
    """Name and memory of each GPU that its driver lists."""
    sandbox: tuple[BackendProbe, ...] = ()
    clock: Clock | None = None
    delivery: Delivery | None = None
    problems: tuple[Problem, ...] = ()


class ClusterReport(Record):
    """What `mend cluster check --json` prints."""

    schema_version: int = 1
    address: str
    driver: Installation
    nodes: tuple[NodeReport, ...]
    problems: tuple[Problem, ...] = ()
    """Of the cluster as a whole."""

    @property
    def all_problems(self) -> list[Problem]:
        """Those of the nodes and of the whole."""
        return [problem for node in self.nodes for problem in node.problems] + list(self.problems)


class NodeProbe:
    """Runs on a node; becomes an actor by ``ray.remote``."""

    def now_s(self) -> float:
        """Unix time of this node."""
        return time.time()

    def installation(self) -> Installation:
        """What is installed here."""
        return describe_installation()

    def gpus(self) -> tuple[str, ...]:
        """Name and memory of each GPU, as NVIDIA's driver says; none where it is not installed."""
        command = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return ()
        return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())

    def sandbox(self, config: SandboxConfig) -> tuple[BackendProbe, ...]:
        """Sandboxes that were really started, or why not."""
        return tuple(try_sandbox(config))

    def problems(self, expected: Installation, sandbox: SandboxConfig) -> list[Problem]:
        """Why this node cannot run episodes."""
        return find_problems(expected, sandbox)

    def deliver(self, parcel: Parcel) -> Delivery:
        """Fetch and unpack a layer into a store that goes away again."""
        start_s = time.monotonic()
        pieces = iter([require_ray().get(piece) for piece in parcel.pieces])
        there_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mend-cluster-check-") as folder:
            layer = receive(parcel, LayerStore(Path(folder)), lambda _: next(pieces))
            manifest = read_manifest(layer)
        return Delivery(
            num_bytes=parcel.num_bytes,
            entries_digest=manifest.entries_digest if manifest else "",
            transfer_s=there_s - start_s,
            unpack_s=time.monotonic() - there_s,
        )


class _Probing:
    """One probe per node of a cluster."""

    def __init__(self, ray: Any, nodes: Sequence[Node], timeout_s: float) -> None:
        self._ray = ray
        self._timeout_s = timeout_s
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        kind = ray.remote(NodeProbe)
        self._probes = {
            node.id: kind.options(num_cpus=0, scheduling_strategy=affinity(node.id, soft=False)).remote()
            for node in nodes
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for probe in self._probes.values():
            self._ray.kill(probe)

    def ask(self, nodes: Sequence[Node], question: str, *arguments: object) -> list[Any]:
        """The answers of all ``nodes``, who work on it at one time; a `Problem` where there is none."""
        calls = [getattr(self._probes[node.id], question).remote(*arguments) for node in nodes]
        deadline_s = time.monotonic() + self._timeout_s
        return [self._answer(call, question, max(0.0, deadline_s - time.monotonic())) for call in calls]

    def _answer(self, call: Any, question: str, timeout_s: float) -> Any:
        try:
            return self._ray.get(call, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            text, remedy = f"no answer to {question!r} in {self._timeout_s:.0f} s", "look at the node with `ray status`"
        except (self._ray.exceptions.RayError, ImportError) as error:
            text = f"{question!r} ended in {(str(error).strip().splitlines() or [repr(error)])[-1].strip()}"
            remedy = "if mendwright cannot be imported there, install it: pip install 'mendwright[ray]'"
        return Problem(kind="answer", text=text, remedy=f"{remedy}; logs lie below Ray's temporary folder there")

    def measure_clock(self, node: Node) -> Clock | Problem:
        """Offset of the node's clock, from the fastest of several questions."""
        found = []
        for _ in range(_NUM_PINGS):
            sent_s = time.time()
            (there_s,) = self.ask([node], "now_s")
            if isinstance(there_s, Problem):
                return there_s
            back_s = time.time()
            found.append(Clock(offset_s=there_s - (sent_s + back_s) / 2, round_trip_s=back_s - sent_s))
        return min(found, key=lambda clock: clock.round_trip_s)


def refuse_unfit_nodes(ray: Any, nodes: Sequence[Node], cluster: ClusterConfig, sandbox: SandboxConfig) -> None:
    """Start a sandbox on each node that offers some, and compare its versions with the driver's.

    Raises:
        SandboxUnavailableError: one of them cannot make a sandbox.
        ClusterError: one has other versions, or does not answer.
    """
    asked = [node for node in nodes if node.resources.get(cluster.sandbox_resource)]
    with _Probing(ray, asked, cluster.start_timeout_s) as probing:
        answers = probing.ask(asked, "problems", describe_installation(), sandbox)
    found = {
        node.name: [answer] if isinstance(answer, Problem) else answer
        for node, answer in zip(asked, answers, strict=True)
    }
    raise_refusal({name: problems for name, problems in found.items() if problems})


def raise_refusal(refused: Mapping[str, Sequence[Problem]]) -> None:
    """End with the problems of the nodes that are refused, by name; nothing happens when there are none.

    Raises:
        SandboxUnavailableError: a node cannot make a sandbox.
        ClusterError: anything else.
    """
    if not refused:
        return
    is_sandbox = any(problem.kind == "sandbox" for problems in refused.values() for problem in problems)
    text = "; ".join(f"{name} is refused: {'. '.join(map(str, problems))}" for name, problems in refused.items())
    raise (SandboxUnavailableError if is_sandbox else ClusterError)(text)


def check_cluster(ray: Any, config: ClusterCheckConfig) -> ClusterReport:
    """Ask every live node for all that a run needs of it; layers go to one node after the other."""
    cluster = config.cluster
    nodes = live_nodes(ray)
    offering = [node for node in nodes if node.resources.get(cluster.sandbox_resource)]
    parcel = _make_probe_layer(config.probe_bytes, ray.put)
    with _Probing(ray, nodes, cluster.start_timeout_s) as probing:
        answers: dict[str, dict[str, Any]] = {node.id: {} for node in nodes}
        for question in ("installation", "gpus"):
            for node, answer in zip(nodes, probing.ask(nodes, question), strict=True):
                answers[node.id][question] = answer
        for node, answer in zip(offering, probing.ask(offering, "sandbox", config.sandbox), strict=True):
            answers[node.id]["sandbox"] = answer
        for node in nodes:
            answers[node.id]["clock"] = probing.measure_clock(node)
            (answers[node.id]["delivery"],) = probing.ask([node], "deliver", parcel)
    driver = describe_installation()
    reports = tuple(judge_node(node, answers[node.id], driver, parcel.entries_digest, config) for node in nodes)
    return ClusterReport(
        address=cluster.address, driver=driver, nodes=reports, problems=_judge_whole(reports, cluster.sandbox_resource)
    )


def _make_probe_layer(num_bytes: int, put: Any) -> Parcel:
    """A layer of random bytes: nothing on the way can make it smaller."""
    with tempfile.TemporaryDirectory(prefix="mend-cluster-check-") as folder:

        def fill(place: Path) -> None:
            for number in range(_NUM_FILES):
                (place / f"part-{number}").write_bytes(os.urandom(num_bytes // _NUM_FILES + 1))

        layer = LayerStore(Path(folder)).build_once("trees", os.urandom(16).hex(), fill)
        return send_layer(layer, put)


def judge_node(
    node: Node, answers: Mapping[str, Any], driver: Installation, entries_digest: str, config: ClusterCheckConfig
) -> NodeReport:
    """A node's report from its ``answers`` (question -> answer or `Problem`), with what is wrong about them."""
    known = {question: answer for question, answer in answers.items() if not isinstance(answer, Problem)}
    problems = [answer for answer in answers.values() if isinstance(answer, Problem)]
    if "installation" in known:
        problems += compare_installations(driver, known["installation"])
    if "sandbox" in known:
        problems += judge_sandbox(known["sandbox"])
    if "clock" in known:
        problems += _judge_clock(known["clock"], config.max_clock_skew_s)
    if "delivery" in known:
        problems += _judge_delivery(known["delivery"], entries_digest)
    if "gpus" in known:
        problems += _judge_gpus(known["gpus"], node.resources.get("GPU", 0.0))
    return NodeReport(
        name=node.name,
        resources=node.resources,
        num_sandboxes=node.resources.get(config.cluster.sandbox_resource, 0.0),
        problems=tuple(problems),
        **known,
    )


def _judge_clock(clock: Clock, max_skew_s: float) -> list[Problem]:
    if abs(clock.offset_s) <= max_skew_s + clock.round_trip_s / 2:
        return []
    text = f"its clock differs by {clock.offset_s:+.1f} s, accepted are {max_skew_s:g} s"
    remedy = "'sudo timedatectl set-ntp true' there (or start chrony), or raise max_clock_skew_s"
    return [Problem(kind="clock", text=text, remedy=remedy)]


def _judge_delivery(delivery: Delivery, expected: str) -> list[Problem]:
    if delivery.entries_digest == expected:
        return []
    text = f"a layer arrived with the digest {delivery.entries_digest[:12]}, expected {expected[:12]}"
    return [Problem(kind="layer", text=text, remedy="look at the memory and the temporary file system of the node")]


def _judge_gpus(found: Sequence[str], declared: float) -> list[Problem]:
    if len(found) >= declared:
        return []
    text = f"{declared:g} GPUs are declared to Ray, its driver lists {len(found)}"
    remedy = "make `nvidia-smi` work there, or start the node with `ray start --num-gpus=NUMBER`"
    return [Problem(kind="capacity", text=text, remedy=remedy)]


def _judge_whole(nodes: Sequence[NodeReport], resource: str) -> tuple[Problem, ...]:
    if any(node.num_sandboxes for node in nodes):
        return ()
    text = f"none of {len(nodes)} nodes offers {resource}, so no worker has a place"
    remedy = f"start nodes with `ray start --address=HEAD:6379 --resources='{{\"{resource}\": NUMBER}}'`"
    return (Problem(kind="capacity", text=text, remedy=remedy),)
