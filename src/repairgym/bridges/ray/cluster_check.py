"""Proving a cluster before money is spent on it: what each node really does.

Reads a connected cluster; makes a `ClusterReport`. Invariants: a node speaks for itself (a probe runs on it, whatever
else is busy there), and what does not answer is a problem with a name, never a hang; nothing stays on a node.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from repairgym.bridges.ray.connection import Node, live_nodes, require_ray
from repairgym.bridges.ray.layer_transfer import Parcel, receive, send_layer
from repairgym.bridges.ray.node_checks import (
    Installation,
    Problem,
    describe_installation,
    find_problems,
    refuse,
    try_sandbox,
)
from repairgym.bridges.ray.reports import Clock, ClusterReport, Delivery, judge_node, judge_whole
from repairgym.config.cluster import ClusterCheckConfig, ClusterConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import install_hint
from repairgym.sandbox.probe import BackendProbe
from repairgym.tasks.layers.inventory import read_manifest
from repairgym.tasks.layers.store import LayerStore

_NUM_PINGS = 7
_NUM_FILES = 8


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

    def delivery(self, parcel: Parcel) -> Delivery:
        """How a layer comes here, into a store that goes away again."""
        start_s = time.monotonic()
        pieces = iter([require_ray().get(piece) for piece in parcel.pieces])
        there_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="repairgym-cluster-check-") as folder:
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
            remedy = f"if repairgym cannot be imported there, install it: {install_hint('ray')}"
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
    found = zip(asked, answers, strict=True)
    refuse({node.name: [answer] if isinstance(answer, Problem) else answer for node, answer in found})


def check_cluster(ray: Any, config: ClusterCheckConfig) -> ClusterReport:
    """Ask every live node for all that a run needs of it."""
    cluster = config.cluster
    nodes = live_nodes(ray)
    parcel = _make_probe_layer(config.probe_bytes, ray.put)
    with _Probing(ray, nodes, cluster.start_timeout_s) as probing:
        answers = _question(probing, nodes, parcel, config)
    driver = describe_installation()
    reports = tuple(judge_node(node, answers[node.id], driver, parcel.entries_digest, config) for node in nodes)
    return ClusterReport(
        address=cluster.address, driver=driver, nodes=reports, problems=judge_whole(reports, cluster.sandbox_resource)
    )


def _question(
    probing: _Probing, nodes: Sequence[Node], parcel: Parcel, config: ClusterCheckConfig
) -> dict[str, dict[str, Any]]:
    """Node id -> question -> answer. A node that leaves one open is asked no more: each wait would be as long again."""
    found: dict[str, dict[str, Any]] = {node.id: {} for node in nodes}

    def is_answering(node: Node) -> bool:
        return not any(isinstance(answer, Problem) for answer in found[node.id].values())

    def ask(asked: Sequence[Node], question: str, *arguments: object) -> None:
        asked = list(filter(is_answering, asked))
        for node, answer in zip(asked, probing.ask(asked, question, *arguments), strict=True):
            found[node.id][question] = answer

    ask(nodes, "installation")
    ask(nodes, "gpus")
    ask([node for node in nodes if node.resources.get(config.cluster.sandbox_resource)], "sandbox", config.sandbox)
    for node in nodes:
        ask([node], "delivery", parcel)  # one after the other: they share the way out of the driver's node
    for node in filter(is_answering, nodes):
        found[node.id]["clock"] = probing.measure_clock(node)
    return found


def _make_probe_layer(num_bytes: int, put: Any) -> Parcel:
    """A layer of random bytes: nothing on the way can make it smaller."""
    with tempfile.TemporaryDirectory(prefix="repairgym-cluster-check-") as folder:

        def fill(place: Path) -> None:
            for number in range(_NUM_FILES):
                (place / f"part-{number}").write_bytes(os.urandom(num_bytes // _NUM_FILES + 1))

        layer = LayerStore(Path(folder)).build_once("trees", os.urandom(16).hex(), fill)
        return send_layer(layer, put)
