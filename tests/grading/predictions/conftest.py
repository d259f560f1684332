"""A real task in a real layer store, small enough to be graded in a second."""

from __future__ import annotations

import io
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from repairgym.records import Certificate, Environment, Provenance, Task
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore, tree_digest

GOLD = "def clamp(value, low, high):\n    return max(low, min(high, value))\n\n\ndef double(x):\n    return 2 * x\n"
BROKEN = GOLD.replace("min(high, value)", "value")
TESTS = (
    "from tinyclamp import clamp, double\n\n\ndef test_high():\n    assert clamp(7, 0, 5) == 5\n\n\n"
    "def test_low():\n    assert clamp(-7, 0, 5) == 0\n\n\ndef test_double():\n    assert double(2) == 4\n"
)


class OneSdist:
    """An index that serves one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self._path


@dataclass(frozen=True)
class Place:
    """A task and the layer store that holds its tree and environment."""

    task: Task
    cache_root: Path


def pack(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"tinyclamp.py": GOLD, "tests/test_clamp.py": TESTS}.items():
            info = tarfile.TarInfo(f"tinyclamp-1.0/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, small_environment: Path) -> Place:
    root = tmp_path_factory.mktemp("grading-layers")
    path = pack(root / "tinyclamp-1.0.tar.gz")
    sdist = Sdist(name="tinyclamp", version="1.0", sha256=sha256_of(path))
    lock = read_lock(())
    environment = describe_environment(lock)
    (root / "environments").mkdir()
    (root / "environments" / environment.digest).symlink_to(small_environment)
    LayerStore(root, OneSdist(path)).tree(sdist)
    return Place(make_task(sdist, environment), root)


def make_task(sdist: Sdist, environment: Environment) -> Task:
    return Task(
        id="tinyclamp-1",
        source="mutations",
        provenance=Provenance(package="tinyclamp", version="1.0", sdist_sha256=sdist.sha256),
        issue="clamp(7, 0, 5) returns 7",
        base_tree=tree_digest(sdist),
        base_files={"tinyclamp.py": BROKEN},
        environment=environment.model_copy(update={"python": platform.python_version()}),
        visible_tests=("tests/test_clamp.py::test_high",),
        fail_to_pass=("tests/test_clamp.py::test_high",),
        pass_to_pass=("tests/test_clamp.py::test_low", "tests/test_clamp.py::test_double"),
        test_paths=("tests/test_clamp.py",),
        gold_files={"tinyclamp.py": GOLD},
        gold_patch="",
        split="test",
        certificate=Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
        test_timeout_s=5.0,
        timeout_s=10.0,
    )
