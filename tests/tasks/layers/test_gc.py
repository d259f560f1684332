"""Layers go by last use, and never one that a process uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.tasks.layers.gc import collect, describe_layer, list_layers, use_path
from repairgym.tasks.layers.store import LayerStore

NOW_S = 2_000_000_000.0
_BUILDER = """
import sys, time
from pathlib import Path
from repairgym.tasks.layers.store import LayerStore
def build(place):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(0.5)
    (place / "file").write_bytes(b"x" * 100)
layer = LayerStore(Path(sys.argv[1])).build_once("trees", sys.argv[3], build)
print(len((layer / "file").read_bytes()), flush=True)
if "--stay" in sys.argv:
    sys.stdin.read()
"""


def start(root, log, digest, *options):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", _BUILDER, str(root), str(log), digest, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)


def build_elsewhere(root, digests):
    """Layers of 100 bytes, built by processes that have ended; used one hour apart, the first one longest ago."""
    for number, digest in enumerate(digests):
        assert start(root, root / "log", digest).communicate()[0] == "100\n"
        last_use_s = NOW_S - 3600 * (len(digests) - number)
        os.utime(use_path(root / "trees" / digest), (last_use_s, last_use_s))


def names(root):
    return [layer.path.name for layer in list_layers(root)]


def test_processes_that_ask_at_once_build_once(tmp_path):
    builders = [start(tmp_path / "store", tmp_path / "log", "digest") for _ in range(2)]
    assert [builder.communicate()[0] for builder in builders] == ["100\n", "100\n"]
    assert (tmp_path / "log").read_text() == "built\n"


def test_the_longest_unused_go_first(tmp_path):
    build_elsewhere(tmp_path, ["a", "b", "c"])
    assert [layer.num_bytes for layer in list_layers(tmp_path)] == [100, 100, 100]
    assert names(tmp_path) == ["a", "b", "c"]
    done = collect(tmp_path, LayersConfig(max_bytes=150, min_idle_s=0), NOW_S)
    assert [layer.path.name for layer in done.removed] == ["a", "b"]
    assert (done.num_bytes_before, done.num_bytes_after) == (300, 100)
    assert names(tmp_path) == ["c"]
    assert sorted(path.name for path in (tmp_path / "trees").glob(".[ab].*")) == [".a.lock", ".b.lock"]


def test_a_store_within_its_bound_and_layers_used_lately_stay(tmp_path):
    build_elsewhere(tmp_path, ["a", "b"])
    assert not collect(tmp_path, LayersConfig(max_bytes=200, min_idle_s=0), NOW_S).removed
    done = collect(tmp_path, LayersConfig(max_bytes=50, min_idle_s=5400), NOW_S)
    assert [layer.path.name for layer in done.removed] == ["a"]


def test_a_layer_in_use_stays(tmp_path):
    build_elsewhere(tmp_path, ["a", "b"])
    user = start(tmp_path, tmp_path / "log", "a", "--stay")
    assert user.stdout.readline() == "100\n"
    os.utime(use_path(tmp_path / "trees" / "a"), (0, 0))
    done = collect(tmp_path, LayersConfig(max_bytes=50, min_idle_s=0), NOW_S)
    assert [layer.path.name for layer in done.removed] == ["b"]
    assert done.num_in_use == 1
    user.kill()
    user.communicate()
    assert [
        layer.path.name for layer in collect(tmp_path, LayersConfig(max_bytes=50, min_idle_s=0), NOW_S).removed
    ] == ["a"]


def test_what_this_process_uses_stays_and_a_removed_layer_is_built_again(tmp_path):
    build_elsewhere(tmp_path, ["a"])
    assert collect(tmp_path, LayersConfig(max_bytes=50, min_idle_s=0), NOW_S).removed
    store = LayerStore(tmp_path, config=LayersConfig(max_bytes=1, min_idle_s=0))
    layer = store.build_once("trees", "a", lambda place: (place / "file").write_text("again"))
    assert (layer / "file").read_text() == "again"
    done = collect(tmp_path, LayersConfig(max_bytes=1, min_idle_s=0), NOW_S)
    assert (done.removed, done.num_in_use) == ((), 1)


def test_a_released_layer_goes_with_its_last_user(tmp_path):
    store = LayerStore(tmp_path)
    user = start(tmp_path, tmp_path / "log", "a", "--stay")
    assert user.stdout.readline() == "100\n"
    for is_left in (True, False):
        assert store.find("trees", "a") is not None
        num_open = len(os.listdir("/proc/self/fd"))
        store.release("trees", "a")
        assert store.has("trees", "a") == is_left
        assert len(os.listdir("/proc/self/fd")) == num_open - 1
        user.kill()
        user.communicate()
    store.release("trees", "a")  # safe to call twice


def test_toolchains_are_collected_like_other_layers(tmp_path):
    (tmp_path / "toolchains" / "java").mkdir(parents=True)
    assert names(tmp_path) == ["java"]


def test_a_layer_that_another_part_of_the_process_holds_stays(tmp_path):
    store = LayerStore(tmp_path)
    with store.holding("trees", "a"), store.holding("trees", "a"):
        store.build_once("trees", "a", lambda place: (place / "file").touch())
        store.release("trees", "a")
        assert store.has("trees", "a")
    store.release("trees", "a")
    assert not store.has("trees", "a")


def test_building_keeps_the_store_within_its_bound(tmp_path):
    build_elsewhere(tmp_path, ["a", "b"])
    for digest in "ab":
        os.utime(use_path(tmp_path / "trees" / digest), (0, 0))
    config = LayersConfig(max_bytes=150)
    LayerStore(tmp_path, config=config.model_copy(update={"is_index_allowed": False})).build_once(
        "trees", "c", lambda place: (place / "file").touch()
    )
    assert sorted(names(tmp_path)) == ["a", "b", "c"]
    LayerStore(tmp_path, config=config).build_once("trees", "d", lambda place: (place / "file").touch())
    assert sorted(names(tmp_path)) == ["b", "c", "d"]


def test_layers_of_older_versions_are_measured(tmp_path):
    old = tmp_path / "environments" / "old"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "python").write_bytes(b"x" * 30)
    os.utime(old, (NOW_S, NOW_S))
    for _ in range(2):
        assert [tuple(layer.model_dump().values()) for layer in list_layers(tmp_path)] == [(old, 30, NOW_S)]
    assert use_path(old).read_text() == "30"


@pytest.mark.parametrize("kind", ["trees", "environments"])
def test_a_store_that_cannot_be_written_is_read(tmp_path, kind):
    layer = tmp_path / kind / "digest"
    layer.mkdir(parents=True)
    use_path(layer).mkdir()
    assert LayerStore(tmp_path).find(kind, "digest") == layer


_HOLDER = """
import resource, sys
from pathlib import Path
from repairgym.errors import RepairGymError
from repairgym.tasks.layers.store import LayerStore
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
store = LayerStore(Path(sys.argv[1]))
try:
    print(sum(store.find("trees", str(number)) is not None for number in range(100)))
except RepairGymError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "said"), [(400, "100\n"), (64, "too many files are open")])
def test_a_process_keeps_as_many_layers_as_it_may_and_never_one_without_its_lock(tmp_path, limit, said):
    for number in range(100):
        (tmp_path / "trees" / str(number)).mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", _HOLDER, str(tmp_path), str(limit)]
    assert said in subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def test_what_killed_builds_and_removals_left_goes(tmp_path):
    build_elsewhere(tmp_path, ["a"])
    folder = tmp_path / "trees"
    for name in (".dead.building-x1", ".dead.removing-7"):
        (folder / name / "part").mkdir(parents=True)
    builder = start(tmp_path, tmp_path / "log", "b", "--stay")
    while not list(folder.glob(".b.building-*")):
        assert builder.poll() is None
    assert not collect(tmp_path, LayersConfig()).removed
    assert builder.stdout.readline() == "100\n", "a build that runs is left alone"
    builder.communicate("")
    assert not list(folder.glob(".dead.*ing-*"))
    assert sorted(names(tmp_path)) == ["a", "b"]


def test_a_layer_that_another_process_removes_meanwhile_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        describe_layer(tmp_path / "trees" / "gone")
