"""A rollout in real sandboxes with hostile submissions, killed in the middle: it resumes, and no verdict is invalid."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from tests.grading.test_hostile import BROKEN, GOLD, TREE, hostile_cases

from repairgym.agent import scripted
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.rewards import raw_rewards
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.local import LocalPool
from repairgym.rollout.names import TURNS_FOLDER
from repairgym.rollout.store import RunStore
from repairgym.rollout.turn_log import TurnLog
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.probe import probe_backend
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import scripted_task
from repairgym.training.run import Run

pytestmark = pytest.mark.slow
PHASE, NUM_TASKS, SIZE, NUM_HOSTILE, NUM_BEFORE = "rollout", 50, 4, 20, 60
TASK = scripted_task(
    fail_to_pass=("tests/test_m.py::test_f",),
    pass_to_pass=("tests/test_m.py::test_g",),
    base_files={"m.py": BROKEN},
    gold_files={"m.py": GOLD},
    test_paths=("tests/test_m.py",),
)
REPAIR = "def f(a, b):\n    return not a > b\n"
"""Right, and not gold itself."""
WRITES = random.Random(0).sample(
    [
        (path, text)
        for case in hostile_cases()
        if case.kind is VerdictKind.FAILED and len(case.files) == 1
        for path, text in case.files.items()
        if text and len(text) < 6000 and path.isprintable() and path.split() == [path]
    ],
    NUM_HOSTILE,
)


TASKS = {name: TASK.model_copy(update={"id": name}) for name in (f"train-{k}" for k in range(NUM_TASKS))}
JOBS = make_groups(PHASE, 0, list(TASKS), SIZE, 0)
MEMBERS = {random.Random(f"{job.task_id}:{job.seed}").random(): number % SIZE for number, job in enumerate(JOBS)}
"""First draw of an episode's generator -> its place in the group."""


def act(task, generator, pipeline):
    """Write a hostile file in the last episode of the first twenty groups, and repair or give up in the others."""
    number, member = int(task.id.partition("-")[2]), MEMBERS[generator.random()]
    is_hostile = number < NUM_HOSTILE and member == SIZE - 1
    path, text = WRITES[number] if is_hostile else ("m.py", BROKEN if member % 2 else REPAIR)
    actions = iter([f"write {path} {json.dumps(text)}", "submit"])
    return lambda observation: next(actions)


def rollout(folder: Path, base: Path, tree: Path, environment: Path) -> list[Trajectory]:
    """Run what the store of ``folder`` does not hold yet."""
    config = RolloutConfig(
        pipeline=PipelineConfig(max_len_tokens=1 << 24, max_turns=12), engine=EngineConfig(max_len_tokens=1 << 24)
    )
    layers, renderer = TaskLayers(environment, tree), ChatRenderer(load_tokenizer(base))
    pool = LocalPool(config, NamespaceBackend, lambda _: layers, renderer, turn_log=TurnLog(folder / TURNS_FOLDER))
    scripted.SCRIPTS["hostile"] = act
    path = folder / "run.db"
    with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
        return Run(folder, store, pool, TASKS).run_jobs(PolicyRef("hostile"), JOBS, phase=PHASE)


def num_stored(folder: Path) -> int:
    path = folder / "run.db"
    if not path.exists() or not path.stat().st_size:
        return 0
    with RunStore.open(path, is_read_only=True) as store:
        return len(store.trajectory_ids(phase=PHASE, step=0))


def test_a_killed_rollout_with_hostile_submissions_resumes(base, small_environment, tmp_path):
    probe = probe_backend("namespace")
    if not probe.is_available:
        pytest.skip(f"namespace does not work here: {probe.reason}")
    tree = tmp_path / "tree"
    for path, text in TREE.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    child = multiprocessing.get_context("spawn").Process(target=rollout, args=(tmp_path, base, tree, small_environment))
    child.start()
    while num_stored(tmp_path) < NUM_BEFORE:
        assert child.is_alive()
        time.sleep(0.1)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    assert NUM_BEFORE <= num_stored(tmp_path) < NUM_TASKS * SIZE
    found = rollout(tmp_path, base, tree, small_environment)
    assert len({trajectory.id for trajectory in found}) == len(found) == NUM_TASKS * SIZE
    kinds = Counter(trajectory.verdict.kind for trajectory in found)
    assert kinds == {VerdictKind.PASSED: NUM_TASKS * SIZE // 2, VerdictKind.FAILED: NUM_TASKS * SIZE // 2}
    for _, group in groupby(found, key=lambda trajectory: trajectory.task_id):
        assert sorted(reward for reward in raw_rewards(list(group)) if reward is not None) == [0.0, 0.0, 1.0, 1.0]
