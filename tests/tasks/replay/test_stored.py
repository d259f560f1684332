"""An oracle is made once and read afterwards; its digest covers what decides it."""

import asyncio
from pathlib import Path

import pytest

from repairgym.config.sandbox import LayersConfig
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.layers.gc import collect, list_layers
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.scripts import Observation, Recording, Script
from repairgym.tasks.replay.stored import OracleStore, oracle_digest
from repairgym.testing.replays import ScriptedRecorder
from repairgym.testing.scripted import scripted_task

TEST = "test_m.py::test_f"


def recorder():
    def answers(files, conditions):
        value = "true" if "<=" in (files.get("m.py", "a <= b") or "") else "false"
        return {TEST: (Observation(0, "result", value, "plain", True),)}

    return ScriptedRecorder(Recording((Script(TEST, ({"op": "call", "args": []},)),), {}), answers)


def spec_in(tree):
    return lambda task, files: SandboxSpec(environment=Path("/env"), tree=tree, files=files)


@pytest.mark.asyncio
async def test_an_oracle_is_made_once_for_all(tmp_path, task):
    layers, ours = LayerStore(tmp_path / "cache"), recorder()
    store = OracleStore(layers)
    assert store.load(task) is None
    assert store.lacks(task)
    oracles = await asyncio.gather(*(store.get(task, ours, spec_in(tmp_path)) for _ in range(3)))
    assert oracles[0] == oracles[1] == oracles[2]
    assert [request.test_ids for request in ours.requests] == [(TEST,), ("test_m.py",)]
    assert not OracleStore(layers).lacks(task)
    assert not OracleStore(layers).lacks(scripted_task(gold_files={"setup.cfg": ""}))  # which nobody can record
    another = recorder()
    assert await OracleStore(layers).get(task, another, spec_in(tmp_path)) == oracles[0]
    assert another.requests == []
    assert (layers.root / "replays" / oracle_digest(task) / "oracle.json.gz").is_file()


@pytest.mark.asyncio
async def test_an_oracle_can_be_collected_and_is_made_again(tmp_path, task):
    layers, ours = LayerStore(tmp_path / "cache"), recorder()
    await OracleStore(layers).get(task, ours, spec_in(tmp_path))
    kinds = sorted(layer.path.parent.name for layer in list_layers(layers.root))
    assert kinds == ["recordings", "recordings", "replays"]
    assert len(collect(layers.root, LayersConfig(max_bytes=1, min_idle_s=0.0), now_s=4e9).removed) == 3
    store = OracleStore(layers)
    assert store.load(task) is None
    await store.get(task, ours, spec_in(tmp_path))
    assert len(ours.requests) == 4


def content_of(layers, task):
    return (layers.root / "replays" / oracle_digest(task) / "oracle.json.gz").read_bytes()


@pytest.mark.asyncio
async def test_tasks_with_the_same_repaired_code_share_recordings(tmp_path, task):
    (tmp_path / "m.py").write_text(task.gold_files["m.py"])
    sibling = scripted_task("sibling", base_files={"m.py": "def f(a, b):\n    return a > b\n"})
    shared, alone, ours = LayerStore(tmp_path / "shared"), LayerStore(tmp_path / "alone"), recorder()
    for one in (task, sibling):
        await OracleStore(shared).get(one, ours, spec_in(tmp_path))
    assert len(ours.requests) == 2
    await OracleStore(alone).get(sibling, recorder(), spec_in(tmp_path))
    assert content_of(shared, sibling) == content_of(alone, sibling)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [
        {"gold_files": {"m.py": "def f(a, b):\n    return (a <= b)\n"}},
        {"pass_to_pass": ("test_m.py::test_g",)},
        {"base_tree": "other"},
        {"plugins": ("anyio",)},
    ],
)
async def test_what_decides_a_recording_is_not_shared(tmp_path, task, changes):
    (tmp_path / "m.py").write_text(task.gold_files["m.py"])
    store, ours = OracleStore(LayerStore(tmp_path / "cache")), recorder()
    for one in (task, scripted_task(**changes)):
        await store.get(one, ours, spec_in(tmp_path))
    assert len(ours.requests) > 2


@pytest.mark.asyncio
async def test_a_recording_without_scripts_is_not_kept(tmp_path, task):
    layers = LayerStore(tmp_path / "cache")
    empty = ScriptedRecorder(Recording((), {}), lambda files, conditions: {})
    await OracleStore(layers).get(task, empty, spec_in(tmp_path))
    assert not [*(layers.root / "recordings").glob("*/recording.json.gz")]


@pytest.mark.parametrize(
    "changes",
    [
        {"base_files": {"m.py": "def f(a, b):\n    return a > b\n"}},
        {"gold_files": {"m.py": "x = 1\n"}},
        {"fail_to_pass": ("test_m.py::test_g",)},
        {"base_tree": "other"},
        {"plugins": ("anyio",)},
    ],
)
def test_what_decides_an_oracle_is_in_its_digest(changes):
    assert oracle_digest(scripted_task(**changes)) != oracle_digest(scripted_task())


def test_what_does_not_decide_it_is_not():
    assert oracle_digest(scripted_task("another", issue="another")) == oracle_digest(scripted_task())
