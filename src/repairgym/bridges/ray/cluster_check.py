"""Check of a cluster before a run: installation, sandbox, layer transfer, clock and GPUs of each node.

Guarantees: a probe on each node answers, whatever else is busy there; a missing answer is a named problem, never a
hang; nothing stays on a node; the same answers make the same report.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from repairgym.bridges.ray.layer_transfer import Parcel, receive, send_layer
from repairgym.bridges.ray.nodes import (
    Installation,
    Node,
    Problem,
    compare_installations,
    describe_installation,
    find_problems,
    judge_sandbox,
    live_nodes,
    raise_problems,
    require_ray,
    try_sandbox,
)
from repairgym.config.cluster import ClusterCheckConfig, ClusterConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import install_hint
from repairgym.records import Record
from repairgym.sandbox.probe import BackendProbe
from repairgym.tasks.layers.inventory import read_manifest
from repairgym.tasks.layers.store import LayerStore

_NUM_PINGS = 7
_NUM_FILES = 8


class Delivery(Record):
    """Transfer of a layer to a node."""

    num_bytes: int
    entries_digest: str
    transfer_s: float
    """From the driver's object store into the node's."""
    unpack_s: float
    """Written and compared with the manifest."""

    @property
    def bytes_per_s(self) -> float:
        """Return the bandwidth of the transfer."""
        return self.num_bytes / max(self.transfer_s, 1e-9)


class Clock(Record):
    """A node's clock against the driver's."""

    offset_s: float
    """The node is ahead by this, with an error of at most half of ``round_trip_s``."""
    round_trip_s: float
    """Of the fastest request."""


class NodeReport(Record):
    """The answers of one node, and its problems."""

    name: str
    resources: dict[str, float]
    num_sandboxes: float
    """Its amount of the sandbox resource; 0: no worker runs here, and no sandbox is tried."""
    installation: Installation | None = None
    gpus: tuple[str, ...] = ()
    """Name and memory of each GPU that its GPU driver lists."""
    sandbox: tuple[BackendProbe, ...] = ()
    clock: Clock | None = None
    delivery: Delivery | None = None
    problems: tuple[Problem, ...] = ()


class ClusterReport(Record):
    """The output of `repairgym cluster check --json`."""

    schema_version: int = 1
    address: str
    driver: Installation
    nodes: tuple[NodeReport, ...]
    problems: tuple[Problem, ...] = ()
    """Of the cluster as a whole."""

    @property
    def all_problems(self) -> list[Problem]:
        """Return the problems of the nodes and of the whole."""
        return [problem for node in self.nodes for problem in node.problems] + list(self.problems)


class NodeProbe:
    """Answers for a node; becomes an actor by ``ray.remote``."""

    def answer(self, question: Callable[..., Any], *arguments: object) -> Any:
        """Call ``question``, a function that this node can import."""
        return question(*arguments)


def list_gpus() -> tuple[str, ...]:
    """Return name and memory of each GPU that NVIDIA's driver lists; none where it is not installed."""
    command = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def receive_delivery(parcel: Parcel) -> Delivery:
    """Receive a layer into a temporary store."""
    start_s = time.monotonic()
    pieces = iter([require_ray().get(piece) for piece in parcel.pieces])
    received_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repairgym-cluster-check-") as folder:
        layer = receive(parcel, LayerStore(Path(folder)), lambda _: next(pieces))
        manifest = read_manifest(layer)
    return Delivery(
        num_bytes=parcel.num_bytes,
        entries_digest=manifest.entries_digest if manifest else "",
        transfer_s=received_s - start_s,
        unpack_s=time.monotonic() - received_s,
    )


class _ProbeGroup:
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

    def ask(self, nodes: Sequence[Node], question: Callable[..., Any], *arguments: object) -> list[Any]:
        """Return the answers of all ``nodes``, computed in parallel; a `Problem` where there is none."""
        calls = [self._probes[node.id].answer.remote(question, *arguments) for node in nodes]
        deadline_s = time.monotonic() + self._timeout_s
        name = question.__name__
        return [self._answer(call, name, max(0.0, deadline_s - time.monotonic())) for call in calls]

    def _answer(self, call: Any, question: str, timeout_s: float) -> Any:
        try:
            return self._ray.get(call, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            text, remedy = f"no answer to {question!r} in {self._timeout_s:.0f} s", "look at the node with `ray status`"
        except (self._ray.exceptions.RayError, ImportError) as error:
            text = f"{question!r} ended in {(str(error).strip().splitlines() or [repr(error)])[-1].strip()}"
            remedy = f"if repairgym cannot be imported there, install it: {install_hint('ray')}"
        return Problem(kind="answer", text=text, remedy=f"{remedy}; logs are below Ray's temporary folder there")

    def measure_clock(self, node: Node) -> Clock | Problem:
        """Measure the offset of the node's clock with the fastest of several requests."""
        clocks = []
        for _ in range(_NUM_PINGS):
            sent_s = time.time()
            (remote_s,) = self.ask([node], time.time)
            if isinstance(remote_s, Problem):
                return remote_s
            received_s = time.time()
            clocks.append(Clock(offset_s=remote_s - (sent_s + received_s) / 2, round_trip_s=received_s - sent_s))
        return min(clocks, key=lambda clock: clock.round_trip_s)


def require_fit_nodes(ray: Any, nodes: Sequence[Node], cluster: ClusterConfig, sandbox: SandboxConfig) -> None:
    """Compare versions and start a sandbox on each node that offers sandboxes; raises as `raise_problems`."""
    offering = [node for node in nodes if node.resources.get(cluster.sandbox_resource)]
    with _ProbeGroup(ray, offering, cluster.start_timeout_s) as probes:
        answers = probes.ask(offering, find_problems, describe_installation(), sandbox)
    pairs = zip(offering, answers, strict=True)
    raise_problems({node.name: [answer] if isinstance(answer, Problem) else answer for node, answer in pairs})


def check_cluster(ray: Any, config: ClusterCheckConfig) -> ClusterReport:
    """Check on every live node what a run needs."""
    cluster = config.cluster
    nodes = live_nodes(ray)
    parcel = _make_probe_layer(config.probe_bytes, ray.put)
    with _ProbeGroup(ray, nodes, cluster.start_timeout_s) as probes:
        answers = _ask_all(probes, nodes, parcel, config)
    driver = describe_installation()
    reports = tuple(judge_node(node, answers[node.id], driver, parcel.entries_digest, config) for node in nodes)
    return ClusterReport(
        address=cluster.address, driver=driver, nodes=reports, problems=judge_whole(reports, cluster.sandbox_resource)
    )


def _ask_all(
    probes: _ProbeGroup, nodes: Sequence[Node], parcel: Parcel, config: ClusterCheckConfig
) -> dict[str, dict[str, Any]]:
    """Return node id -> question -> answer; a node that misses an answer gets no more questions: they time out."""
    answers: dict[str, dict[str, Any]] = {node.id: {} for node in nodes}

    def is_answering(node: Node) -> bool:
        return not any(isinstance(answer, Problem) for answer in answers[node.id].values())

    def ask(name: str, nodes: Sequence[Node], question: Callable[..., Any], *arguments: object) -> None:
        nodes = list(filter(is_answering, nodes))
        for node, answer in zip(nodes, probes.ask(nodes, question, *arguments), strict=True):
            answers[node.id][name] = answer

    ask("installation", nodes, describe_installation)
    ask("gpus", nodes, list_gpus)
    offering = [node for node in nodes if node.resources.get(config.cluster.sandbox_resource)]
    ask("sandbox", offering, try_sandbox, config.sandbox)
    for node in nodes:
        ask("delivery", [node], receive_delivery, parcel)  # one by one: they share the network of the driver's node
    for node in filter(is_answering, nodes):
        answers[node.id]["clock"] = probes.measure_clock(node)
    return answers


def _make_probe_layer(num_bytes: int, put: Any) -> Parcel:
    """Make a layer of random bytes, which no compression makes smaller."""
    with tempfile.TemporaryDirectory(prefix="repairgym-cluster-check-") as root:

        def fill(folder: Path) -> None:
            for number in range(_NUM_FILES):
                (folder / f"part-{number}").write_bytes(os.urandom(num_bytes // _NUM_FILES + 1))

        layer = LayerStore(Path(root)).build_once("trees", os.urandom(16).hex(), fill)
        return send_layer(layer, put)


def judge_node(
    node: Node, answers: Mapping[str, Any], driver: Installation, entries_digest: str, config: ClusterCheckConfig
) -> NodeReport:
    """Return a node's report with its problems, from its ``answers`` (question -> answer or `Problem`)."""
    known = {question: answer for question, answer in answers.items() if not isinstance(answer, Problem)}
    report = NodeReport(
        name=node.name,
        resources=node.resources,
        num_sandboxes=node.resources.get(config.cluster.sandbox_resource, 0.0),
        **known,
    )
    problems = [answer for answer in answers.values() if isinstance(answer, Problem)]
    if report.installation is not None:
        problems += compare_installations(driver, report.installation)
    if "sandbox" in known:
        problems += judge_sandbox(report.sandbox)
    problems += _judge_measurements(report, entries_digest, config.max_clock_skew_s)
    declared = node.resources.get("GPU", 0.0)
    if "gpus" in known and len(report.gpus) < declared:
        text = f"{declared:g} GPUs are declared to Ray, its driver lists {len(report.gpus)}"
        remedy = "make `nvidia-smi` work there, or start the node with `ray start --num-gpus=NUMBER`"
        problems.append(Problem(kind="capacity", text=text, remedy=remedy))
    return report.model_copy(update={"problems": tuple(problems)})


def _judge_measurements(report: NodeReport, entries_digest: str, max_skew_s: float) -> Iterator[Problem]:
    clock, delivery = report.clock, report.delivery
    if clock is not None and abs(clock.offset_s) > max_skew_s + clock.round_trip_s / 2:
        text = f"its clock differs by {clock.offset_s:+.1f} s, accepted are {max_skew_s:g} s"
        remedy = "'sudo timedatectl set-ntp true' there (or start chrony), or raise max_clock_skew_s"
        yield Problem(kind="clock", text=text, remedy=remedy)
    if delivery is not None and delivery.entries_digest != entries_digest:
        text = f"a layer arrived with the digest {delivery.entries_digest[:12]}, expected {entries_digest[:12]}"
        remedy = "look at the memory and the temporary file system of the node"
        yield Problem(kind="layer", text=text, remedy=remedy)


def judge_whole(nodes: Sequence[NodeReport], resource: str) -> tuple[Problem, ...]:
    """Return the problems of the cluster as a whole."""
    if any(node.num_sandboxes for node in nodes):
        return ()
    text = f"none of {len(nodes)} nodes offers {resource}, so no worker has a place"
    remedy = f"start nodes with `ray start --address=HEAD:6379 --resources='{{\"{resource}\": NUMBER}}'`"
    return (Problem(kind="capacity", text=text, remedy=remedy),)
