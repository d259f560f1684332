"""A Ray cluster of several nodes on this machine, each with a layer store of its own, and tiny tasks to run on it."""

from __future__ import annotations

import io
import os
import platform
import shutil
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from repairgym.records import Certificate, Environment, Location, Provenance, Task
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore, tree_digest
from repairgym.tasks.store import TaskStore
from repairgym.testing.environments import copy_environment

SOURCE = Path(__file__).parents[3] / "src"
OBJECT_STORE_BYTES = 80 << 20
"""Little more than the least that Ray accepts."""
NODE_START_TIMEOUT_S = 600.0
NUM_TASKS = 4
BWRAP = "bwrap-of-the-good-nodes"


@dataclass
class Site:
    """A cluster and what runs on it."""

    cluster: Any
    root: Path
    client_port: int
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def client_address(self) -> str:
        return f"ray://127.0.0.1:{self.client_port}"

    @property
    def tools(self) -> Path:
        """A folder of programs that the nodes find."""
        return self.root / "tools"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def cache(self, name: str) -> Path:
        """The layer store of the driver, or of a node."""
        return self.root / "caches" / name

    def add_node(self, name: str, **options: Any) -> Any:
        environ = {"REPAIRGYM_CACHE": str(self.cache(name)), "PATH": f"{self.tools}:{os.environ['PATH']}"}
        environ |= options.pop("env_vars", {})
        resources = options.pop("resources", {"repairgym_sandbox": 4})
        node = self.cluster.add_node(
            num_cpus=1, resources=resources, object_store_memory=OBJECT_STORE_BYTES, env_vars=environ, **options
        )
        self.nodes.append(node)
        return node


@pytest.fixture(scope="module")
def ray_environ() -> Iterator[None]:
    """What Ray's processes inherit: nothing in the home directory, this checkout, no report to anybody."""
    home = tempfile.mkdtemp(prefix="mr-")
    Path(home, "ray").mkdir()  # Ray writes the address of the cluster there, and does not make the folder
    changed = {
        "HOME": home,
        "RAY_TMPDIR": home,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        # A busy machine is slow, not dead: a killed node fails its health check at once, whatever the limit is.
        "RAY_health_check_timeout_ms": "60000",
        "RAY_worker_register_timeout_seconds": "600",
        "RAY_gcs_server_request_timeout_seconds": "300",
        # The head starts a process for each remote client, and gives it 30 s by default.
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "60",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def patient_ray(ray_environ: None) -> Iterator[None]:
    """Ray without its dashboard, which it starts even when told not to, and with more than 30 s for a node to start."""
    from ray._private import services
    from ray._private.node import Node

    ask = services.get_node

    def ask_patiently(*arguments: Any) -> Any:
        deadline_s = time.monotonic() + NODE_START_TIMEOUT_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", ask_patiently)
        patch.setattr(Node, "start_api_server", lambda node, **options: None)
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, patient_ray: None) -> Iterator[Site]:
    """A head without sandboxes and two nodes with four each."""
    from ray.cluster_utils import Cluster

    sockets = tempfile.mkdtemp(prefix="mr-")  # a short path: the names of sockets are bounded
    head = {
        "num_cpus": 1,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "temp_dir": sockets,
        "ray_client_server_port": (client_port := free_port()),
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    new_site = Site(cluster, tmp_path_factory.mktemp("ray"), client_port)
    try:
        new_site.tools.mkdir()
        if bwrap := shutil.which("bwrap"):
            (new_site.tools / BWRAP).symlink_to(bwrap)
        fill(new_site)
        for name in ("one", "two"):
            new_site.add_node(name)
        yield new_site
    finally:
        cluster.shutdown()
        shutil.rmtree(sockets, ignore_errors=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def fill(site: Site) -> None:
    """Tasks, and their layers in the driver's store: nothing is downloaded, and only the driver has them."""
    store = LayerStore(site.cache("driver"))
    environment = describe_environment(read_lock(()))
    store.build_once("environments", environment.digest, copy_environment)
    tasks = []
    for number in range(NUM_TASKS):
        gold = f"def fits(value, bound):\n    return value <= bound + {number}\n"
        sdist = pack_sdist(site.root, number, gold)
        LayerStore(site.cache("driver"), OneSdist(site.root)).tree(sdist)
        tasks.append(make_task(sdist, number, gold, environment))
    TaskStore(site.tasks).save(tasks, {}, {})


class OneSdist:
    """An index that serves a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self._folder / f"{sdist.name}-{sdist.version}.tar.gz"


def pack_sdist(root: Path, number: int, gold: str) -> Sdist:
    name = f"tinyfit{number}"
    tests = (
        f"from tinyfit import fits\n\n\ndef test_edge():\n    assert fits(5 + {number}, 5)\n\n\n"
        f"def test_beyond():\n    assert not fits(6 + {number}, 5)\n"
    )
    path = root / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file, text in {"tinyfit.py": gold, "tests/test_fit.py": tests}.items():
            info = tarfile.TarInfo(f"{name}-1.0/{file}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return Sdist(name=name, version="1.0", sha256=sha256_of(path))


def make_task(sdist: Sdist, number: int, gold: str, environment: Environment) -> Task:
    return Task(
        id=f"tinyfit-{number}",
        source="mutations",
        provenance=Provenance(package=sdist.name, version="1.0", sdist_sha256=sdist.sha256),
        issue=f"fits({5 + number}, 5) is False",
        base_tree=tree_digest(sdist),
        base_files={"tinyfit.py": gold.replace("<=", "<")},
        environment=environment.model_copy(update={"python": platform.python_version()}),
        visible_tests=("tests/test_fit.py::test_edge",),
        fail_to_pass=("tests/test_fit.py::test_edge",),
        pass_to_pass=("tests/test_fit.py::test_beyond",),
        test_paths=("tests/test_fit.py",),
        gold_files={"tinyfit.py": gold},
        gold_patch="",
        location=Location(path="tinyfit.py", name="fits", first_line=1, last_line=2),
        split="test",
        certificate=Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
        test_timeout_s=30.0,
        timeout_s=120.0,
    )
