"""What a checked cluster looks like, and what of it is wrong.

Reads the answers of nodes; makes `NodeReport` and `ClusterReport` records. Invariant: nothing here asks anybody: the
same answers make the same report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repairgym.bridges.ray.connection import Node
from repairgym.bridges.ray.node_checks import Installation, Problem, compare_installations, judge_sandbox
from repairgym.config.cluster import ClusterCheckConfig
from repairgym.records import Record
from repairgym.sandbox.probe import BackendProbe


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
    """What `repairgym cluster check --json` prints."""

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


def judge_whole(nodes: Sequence[NodeReport], resource: str) -> tuple[Problem, ...]:
    """What is wrong with the cluster, however good each node is."""
    if any(node.num_sandboxes for node in nodes):
        return ()
    text = f"none of {len(nodes)} nodes offers {resource}, so no worker has a place"
    remedy = f"start nodes with `ray start --address=HEAD:6379 --resources='{{\"{resource}\": NUMBER}}'`"
    return (Problem(kind="capacity", text=text, remedy=remedy),)
