"""Episodes on real Ray clusters of this machine: no episode is lost with a node or worker; unfit nodes are rejected.

The tests share one cluster and run in their order: a head without sandboxes and two nodes, each with a layer store of
its own. They run `repairgym` as a person does, in processes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from repairgym.bridges.ray.nodes import connected
from repairgym.bridges.ray.workers import RayWorkers
from repairgym.config.cluster import ClusterConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import shipped_base
from repairgym.records import Trajectory
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.store import RunStore
from repairgym.rollout.workers import WorkerSetup
from repairgym.tasks.layers.inventory import find_damage, read_manifest
from repairgym.tasks.store import TaskStore

pytestmark = pytest.mark.ray
NUM_SAMPLES = 4
BWRAP = "bwrap-of-the-good-nodes"
"""On the path of all nodes but the bad one (see `conftest`)."""
ROLLOUT = (f"num_samples={NUM_SAMPLES}", "rollout.max_sandboxes=4", "rollout.max_in_flight=4")
TIMEOUT_S = 1800.0
PATIENCE = f"cluster.start_timeout_s={TIMEOUT_S}"


def start(site: Any, *arguments: str) -> subprocess.Popen[str]:
    """`repairgym` with the driver's layer store."""
    environ = {**os.environ, "REPAIRGYM_CACHE": str(site.cache("driver"))}
    command = [sys.executable, "-c", "from repairgym.cli.main import main; main()", *arguments]
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == code, out + err
    return out, err


def rollout(site: Any, run: str, *overrides: str, policy: str = "teacher") -> subprocess.Popen[str]:
    return start(site, "rollout", str(site.tasks), str(site.root / run), "--policy", policy, *ROLLOUT, *overrides)


def on(site: Any) -> tuple[str, ...]:
    return f"cluster.address={site.address}", PATIENCE


def stored(site: Any, run: str) -> dict[str, tuple[object, ...]]:
    """Trajectory id -> verdict, patch, seed, actions and tokens."""
    with RunStore.open(site.root / run / "run.db", is_read_only=True) as store:
        rows = list(store.trajectories(phase="rollout"))
    return by_id(rows)


def by_id(rows: list[Trajectory]) -> dict[str, tuple[object, ...]]:
    assert len({t.id for t in rows}) == len(rows)
    return {
        t.id: (t.verdict.kind, t.final_patch, t.seed, [turn.action for turn in t.turns], t.ledger.token_id.tolist())
        for t in rows
    }


def on_nodes(site: Any, kind: str) -> list[Path]:
    """Layers in the stores of nodes; each node has its own."""
    stores = [store for store in site.cache("driver").parent.iterdir() if store != site.cache("driver")]
    return [layer for store in stores for layer in (store / kind).glob("[!.]*")]


def below(node: Any) -> list[psutil.Process]:
    """All processes of a node but its raylet."""
    return list(psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True))


def workers_of(node: Any) -> list[psutil.Process]:
    return [process for process in below(node) if "EpisodeActor" in title(process)]


def title(process: psutil.Process) -> str:
    """Return the command line; empty for a process that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def have_ended(processes: list[psutil.Process]) -> bool:
    """True when all of them end soon: sandboxes, zygotes and spawners go with the worker that made them."""
    deadline_s = time.monotonic() + 60
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(workers: list[psutil.Process]) -> bool:
    """Kill them; true when none of their processes stays."""
    processes = [*workers, *(child for worker in workers for child in worker.children(recursive=True))]
    for worker in workers:
        worker.kill()
    return have_ended(processes)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            pytest.fail("it was never time:\n" + "".join(process.communicate()))
        time.sleep(0.05)


def num_stored(site: Any, run: str) -> int:
    path = site.root / run / "run.db"
    if not path.exists():
        return 0
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM trajectories").fetchone()[0])
        except sqlite3.OperationalError:  # the schema is being made
            return 0


def check(site: Any, address: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    command = ("cluster", "check", "--address", address, "--json", "probe_bytes=20000000", PATIENCE, *arguments)
    out, _ = finish(start(site, *command), code)
    return dict(json.loads(out))


@pytest.fixture(scope="module")
def whole(site: Any) -> dict[str, tuple[object, ...]]:
    """Trajectories of a run on this machine without Ray."""
    finish(rollout(site, "whole", "rollout.num_workers=1"))
    trajectories = stored(site, "whole")
    assert len({kind for kind, *_ in trajectories.values()}) > 1  # some passed, some did not
    return trajectories


def test_a_good_cluster_is_proved_node_by_node(site: Any) -> None:
    report = check(site, site.address)
    assert [node["problems"] for node in report["nodes"]] == [[], [], []]
    offering = [node for node in report["nodes"] if node["num_sandboxes"]]
    assert len(offering) == 2
    for node in offering:
        assert any(probe["is_available"] and probe["duration_s"] > 0 for probe in node["sandbox"])
    for node in report["nodes"]:
        assert node["installation"] == report["driver"]
        assert abs(node["clock"]["offset_s"]) <= max(0.1, node["clock"]["round_trip_s"])
        assert node["delivery"]["num_bytes"] >= 20_000_000
        assert node["delivery"]["transfer_s"] > 0


def test_the_check_works_from_outside_the_cluster(site: Any) -> None:
    assert check(site, site.client_address)["nodes"]


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_a_node_without_sandboxes_is_rejected_by_name(site: Any) -> None:
    bad = site.add_node("bad", env_vars={"PATH": os.environ["PATH"]})
    try:
        wanted = ("sandbox.backend=bubblewrap", f"sandbox.bubblewrap={BWRAP}")
        report = check(site, site.address, *wanted, code=5)
        rejected = [node for node in report["nodes"] if node["problems"]]
        assert len(rejected) == 1
        assert bad.node_id[:8] in rejected[0]["name"]
        assert "apt install bubblewrap" in rejected[0]["problems"][0]["remedy"]
        overrides = [f"rollout.{text}" for text in wanted]
        _, err = finish(rollout(site, "rejected", *on(site), *overrides), code=5)
        assert rejected[0]["name"] in err
        assert "apt install bubblewrap" in err
        assert num_stored(site, "rejected") == 0
    finally:
        site.cluster.remove_node(bad, allow_graceful=False)


def test_a_cluster_without_room_is_rejected(site: Any) -> None:
    process = rollout(site, "small", *on(site), "rollout.num_workers=9")
    _, err = finish(process, code=9)
    assert "9 workers of 4 repairgym_sandbox" in err
    assert "ray start" in err


def test_a_killed_node_costs_nothing(site: Any, whole: dict[str, tuple[object, ...]]) -> None:
    process = rollout(site, "broken", *on(site), "rollout.num_workers=2")
    # Its worker has just been given a group, and is halted, so that these episodes are in flight when the node goes.
    wait_for(lambda: any((site.cache("two") / "trees").glob("[!.]*")), process)
    for worker in workers_of(site.nodes[1]):
        worker.suspend()
    wait_for(lambda: num_stored(site, "broken") > 0, process)
    num_before = num_stored(site, "broken")
    assert num_before < len(whole)
    processes = below(site.nodes[1])
    site.cluster.remove_node(site.nodes[1], allow_graceful=False)
    _, err = finish(process)
    assert have_ended(processes)
    assert "workers: 1 were lost and replaced" in err
    num_retried = int(err.split("replaced, ")[1].split()[0])
    assert num_retried > 0
    assert stored(site, "broken") == whole
    with RunStore.open(site.root / "broken" / "run.db", is_read_only=True) as store:
        (event,) = [event for event in store.events() if event.kind == "worker_lost"]
    assert site.nodes[1].node_id[:8] in event.message
    assert f"{num_retried} of its episodes are run again" in event.message


def test_a_killed_worker_costs_nothing_whether_it_was_busy_or_idle(
    site: Any, whole: dict[str, tuple[object, ...]]
) -> None:
    """Two worker processes on the one node that is left."""
    config = RolloutConfig(num_workers=2, max_sandboxes=2, max_in_flight=4)
    setup = WorkerSetup(config, str(shipped_base()), str(site.cache("driver")))
    cluster = ClusterConfig(address=site.address, num_cpus=0.5, start_timeout_s=TIMEOUT_S)
    tasks = {task.id: task for task in TaskStore(site.tasks).load()}
    messages: list[str] = []

    def run(phase: str, ids: list[str]) -> Iterator[Trajectory]:
        return pool.run(PolicyRef("teacher"), make_groups(phase, 0, ids, NUM_SAMPLES, seed=0), tasks)

    with connected(cluster, config) as ray:
        workers = RayWorkers(ray, setup, cluster)
        with WorkerPool(setup, workers, messages.append) as pool:
            while len(workers.ready()) < 2:
                list(run("before", list(tasks)[:1]))
            running = run("rollout/teacher", list(tasks))
            first = next(running)  # each has a group now
            assert kill(workers_of(site.nodes[0])[:1])
            assert by_id([first, *running]) == whole
            num_retried = pool.counters()["pool/num_retried_episodes"]
            assert num_retried > 0
            assert len(messages) == 1
            num_idle = len(workers.ready())
            assert kill(workers_of(site.nodes[0]))
            assert len(list(run("after", list(tasks)[:1]))) == NUM_SAMPLES
            assert pool.counters()["pool/num_lost_workers"] == len(messages) == 1 + num_idle
            assert pool.counters()["pool/num_retried_episodes"] == num_retried
            processes = [process for worker in workers_of(site.nodes[0]) for process in worker.children(recursive=True)]
            assert processes
    assert have_ended(processes)


def test_a_worker_waits_for_a_node_and_an_interrupted_run_resumes(
    site: Any, whole: dict[str, tuple[object, ...]]
) -> None:
    """An autoscaler does this: it sees the pending demand and brings a node."""
    late = ("cluster.sandbox_resource=late_sandbox", "cluster.is_autoscaling=true", "rollout.num_workers=1")
    command = (*on(site), *late, "select.num_tasks=3")
    process = rollout(site, "late", *command)
    wait_for(lambda: {"late_sandbox": 4.0} in pending_demands(site), process)
    site.add_node("late", resources={"late_sandbox": 4})
    wait_for(lambda: num_stored(site, "late") > 0, process)
    process.send_signal(signal.SIGINT)
    finish(process, code=130)
    num_before = num_stored(site, "late")
    assert num_before < 3 * NUM_SAMPLES
    assert num_before % NUM_SAMPLES == 0  # episodes in flight have ended
    finish(rollout(site, "late", *command))
    trajectories = stored(site, "late")
    assert len(trajectories) == 3 * NUM_SAMPLES
    assert trajectories.items() <= whole.items()


def pending_demands(site: Any) -> list[dict[str, float]]:
    """The demand that Ray reports to an autoscaler, custom resources only."""
    from ray._raylet import GcsClient
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    state = get_cluster_resource_state(GcsClient(site.address))
    shapes = [request.request.resources_bundle for request in state.pending_resource_requests]
    return [{name: amount for name, amount in shape.items() if name != "CPU"} for shape in shapes]


def test_weights_travel(site: Any) -> None:
    """A model folder of the driver, run from outside the cluster on a node that has never seen it."""
    small = ("select.num_tasks=1", "num_samples=2", "rollout.pipeline.max_turns=2", "rollout.num_workers=1")
    process = rollout(
        site, "model", f"cluster.address={site.client_address}", PATIENCE, *small, policy=str(shipped_base())
    )
    finish(process)
    with RunStore.open(site.root / "model" / "run.db", is_read_only=True) as store:
        trajectories = list(store.trajectories(phase="rollout"))
    assert len(trajectories) == 2
    assert all(t.verdict.is_valid and t.ledger.is_action.any() for t in trajectories)
    assert any((layer / "model.safetensors").is_file() for layer in on_nodes(site, "models"))


def test_layers_were_built_once_and_arrived_whole(site: Any) -> None:
    """After the runs: the nodes hold what the driver built, under the same digests, and nothing was fetched."""
    layers = [layer for kind in ("environments", "trees") for layer in on_nodes(site, kind)]
    assert layers
    for layer in layers:
        own = site.cache("driver") / layer.parent.name / layer.name
        assert find_damage(layer) == ()
        assert read_manifest(layer).entries_digest == read_manifest(own).entries_digest
    assert not on_nodes(site, "sdists")
