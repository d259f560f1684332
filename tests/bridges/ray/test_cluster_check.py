"""Rejection of nodes, with its messages; without Ray."""

from __future__ import annotations

import sys

import pytest

from repairgym.bridges.ray.cluster_check import Clock, ClusterReport, Delivery, judge_node, judge_whole
from repairgym.bridges.ray.nodes import (
    Installation,
    Node,
    Problem,
    compare_installations,
    judge_sandbox,
    raise_problems,
    require_ray,
    require_room,
    try_sandbox,
)
from repairgym.config.cluster import ClusterCheckConfig, ClusterConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ClusterError, ConfigError, SandboxUnavailableError
from repairgym.sandbox.probe import BackendProbe

OWN = Installation(
    python="3.11.7", python_path="/usr/bin/python3.11", repairgym="0.1", code_digest="a" * 64, ray="2.60.0"
)
CLUSTER = ClusterConfig(address="head:6379")
WORKS = BackendProbe(name="namespace", is_available=True, is_isolating=True, duration_s=0.5)
BROKEN = BackendProbe(
    name="namespace",
    is_available=False,
    is_isolating=True,
    reason="unshare: Operation not permitted",
    remedy="'sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0'",
)
DELIVERY = Delivery(num_bytes=10**8, entries_digest="d", transfer_s=0.5, unpack_s=1.0)
GOOD = {
    "installation": OWN,
    "gpus": ("NVIDIA H200, 143771 MiB",) * 8,
    "sandbox": (WORKS,),
    "clock": Clock(offset_s=0.4, round_trip_s=0.001),
    "delivery": DELIVERY,
}


def node(name: str = "n1", **resources: float) -> Node:
    return Node(id=name, name=name, resources=resources or {"CPU": 8.0, "GPU": 8.0, "repairgym_sandbox": 96.0})


def problems(**changed: object) -> list[Problem]:
    report = judge_node(node(), {**GOOD, **changed}, OWN, "d", ClusterCheckConfig(cluster=CLUSTER))
    return list(report.problems)


def test_a_good_node_has_no_problem():
    assert problems() == []
    report = judge_node(node(), GOOD, OWN, "d", ClusterCheckConfig(cluster=CLUSTER))
    assert report.num_sandboxes == 96
    assert report.delivery is not None
    assert report.delivery.bytes_per_s == pytest.approx(2e8)
    whole = ClusterReport(address="head:6379", driver=OWN, nodes=(report,))
    assert ClusterReport.model_validate_json(whole.model_dump_json()) == whole


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"sandbox": (BROKEN,)}, "sandbox", ["Operation not permitted", "sudo sysctl kernel.apparmor"]),
        ({"installation": OWN.model_copy(update={"ray": "2.59"})}, "version", ["ray is 2.59", "ray[client]==2.60.0"]),
        ({"installation": OWN.model_copy(update={"code_digest": "b" * 64})}, "version", ["the driver's checkout"]),
        ({"clock": Clock(offset_s=-9.0, round_trip_s=0.1)}, "clock", ["-9.0 s", "timedatectl set-ntp true"]),
        (
            {"delivery": DELIVERY.model_copy(update={"entries_digest": "e"})},
            "layer",
            ["digest e", "expected d"],
        ),
        ({"gpus": ()}, "capacity", ["8 GPUs are declared", "nvidia-smi"]),
        ({"sandbox": Problem(kind="answer", text="no answer", remedy="ray status")}, "answer", ["no answer"]),
    ],
)
def test_each_problem_is_named_with_its_fix(changed, kind, words):
    (problem,) = problems(**changed)
    assert problem.kind == kind
    assert all(word in str(problem) for word in words)


def test_a_slow_answer_is_no_clock_problem():
    assert problems(clock=Clock(offset_s=2.4, round_trip_s=3.0)) == []


def test_every_difference_of_versions_has_a_remedy():
    other = Installation(python="3.12.1", python_path="/opt/python", repairgym="0.2", code_digest="c", ray="2.0")
    assert len(compare_installations(OWN, other)) == len(Installation.model_fields)
    assert compare_installations(OWN, OWN) == []


def test_the_error_names_the_nodes_and_has_the_right_type():
    raise_problems({"n1": []})
    version = compare_installations(OWN, OWN.model_copy(update={"repairgym": "9"}))
    with pytest.raises(ClusterError, match=r"n2 is rejected: repairgym is 9, expected 0\.1; pip install"):
        raise_problems({"n1": [], "n2": version})
    with pytest.raises(SandboxUnavailableError, match="n3 is rejected: no sandbox starts"):
        raise_problems({"n1": [], "n2": version, "n3": judge_sandbox([BROKEN])})


def test_a_cluster_without_sandboxes_is_rejected():
    report = judge_node(node("n1", CPU=8.0), GOOD, OWN, "d", ClusterCheckConfig(cluster=CLUSTER))
    (problem,) = judge_whole([report, report], "repairgym_sandbox")
    assert problem.text.startswith("none of 2 nodes offers repairgym_sandbox")
    assert "ray start" in problem.remedy
    offering = judge_node(node(), GOOD, OWN, "d", ClusterCheckConfig(cluster=CLUSTER))
    assert judge_whole([report, offering], "repairgym_sandbox") == ()


def test_room_is_counted_node_by_node():
    rollout = RolloutConfig(num_workers=4, max_sandboxes=40)
    two = [
        node("n1", CPU=8.0, repairgym_sandbox=96.0),
        node("n2", CPU=1.0, repairgym_sandbox=200.0),
        node("head", CPU=4.0),
    ]
    with pytest.raises(ClusterError, match=r"room for 3 \(n1: 96 repairgym_sandbox, 8 CPU; .*rollout\.num_workers=3"):
        require_room(two, CLUSTER, rollout)
    require_room(two, CLUSTER, rollout.model_copy(update={"num_workers": 3}))
    require_room(two, CLUSTER.model_copy(update={"is_autoscaling": True}), rollout)


def test_a_sandbox_is_started():
    (probe,) = try_sandbox(SandboxConfig(backend="bubblewrap", bubblewrap="no-such-bwrap"))
    assert not probe.is_available
    (problem,) = judge_sandbox([probe])
    assert "no-such-bwrap" in problem.text
    assert "apt install bubblewrap" in problem.remedy


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'repairgym\[ray\] @ git"):
        require_ray()
