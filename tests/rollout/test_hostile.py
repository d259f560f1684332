"""A rollout in which some submissions are hostile ends, resumes, and gives each of them a verdict."""

import json
from collections import Counter
from itertools import cycle

import pytest

from repairgym.agent import scripted
from repairgym.config.commands import AuditConfig
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.grading.grader import Grader
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.local import LocalPool
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer
from repairgym.training.evaluate import audit
from repairgym.training.run import Run

PHASE = "rollout"
GOLD = "def f(a, b):\n    return a <= b\n"
NUM_TASKS, SIZE, NUM_HOSTILE = 50, 4, 20
WRITES = (
    ("m.py", GOLD + "_W = " + "+".join(["1"] * 1200)),
    ("m.py", "_W = " + "-" * 5000 + "1"),
    ("m.py", GOLD.replace("<=", "<") + "_W = 0x" + "f" * 4000),
    ("n" * 300 + ".py", "x = 1\n"),
    ("m.py", GOLD + "# \ud800"),
    ("pkg/" + "n/" * 600 + "x.py", "x = 1\n"),
    ("m.py/x.py", "x = 1\n"),
)


@pytest.fixture
def tasks(task):
    return {name: task.model_copy(update={"id": name}) for name in (f"train-{k}" for k in range(NUM_TASKS))}


@pytest.fixture
def run(tmp_path, base, tasks, monkeypatch) -> Run:
    writes = cycle(WRITES)

    def hostile(task, generator, pipeline):
        # The first five tasks, four episodes of each.
        if int(task.id.partition("-")[2]) >= NUM_HOSTILE // SIZE:
            return scripted.SCRIPTS["oracle"](task, generator, pipeline)
        path, text = next(writes)
        actions = iter([f"write {path} {json.dumps(text)}", "submit"])
        return lambda observation: next(actions)

    monkeypatch.setitem(scripted.SCRIPTS, "hostile", hostile)
    config = RolloutConfig(
        pipeline=PipelineConfig(max_len_tokens=1 << 24, max_turns=12), engine=EngineConfig(max_len_tokens=1 << 24)
    )
    renderer = ChatRenderer(load_tokenizer(base))
    layers = TaskLayers(tmp_path, tmp_path)
    pool = LocalPool(config, lambda: ScriptedBackend(scripted_answer()), lambda _: layers, renderer)
    return Run(tmp_path, RunStore.create(tmp_path / "run.db"), pool, tasks)


@pytest.mark.asyncio
async def test_hostile_submissions_end_neither_a_rollout_nor_an_audit(run, tmp_path):
    import asyncio

    def collect() -> None:
        jobs = make_groups(PHASE, 0, list(run.tasks), SIZE, 0)
        policy = PolicyRef("hostile")
        assert (
            len(run.run_jobs(policy, jobs[: NUM_HOSTILE + 40], phase=PHASE)) == NUM_HOSTILE + 40
        )  # then it is stopped
        found = run.run_jobs(policy, jobs, phase=PHASE)
        assert len(found) == len(jobs) == NUM_TASKS * SIZE
        counts = Counter(trajectory.verdict.kind for trajectory in found)
        assert counts == {VerdictKind.FAILED: NUM_HOSTILE, VerdictKind.PASSED: len(jobs) - NUM_HOSTILE}
        assert [t.id for t in run.run_jobs(policy, jobs, phase=PHASE)] == [t.id for t in found]

    await asyncio.to_thread(collect)
    config = GradingConfig(is_cold=True)

    def spec(task, files):
        return SandboxSpec(environment=tmp_path, tree=tmp_path, files=files)

    grader = Grader(ScriptedBackend(scripted_answer()), spec, config, ExecutionCache(max_entries=0))
    settings = AuditConfig(phase=PHASE, num_per_step=0, grading=config)
    assert await audit(run.store, run.tasks, settings, grader) == NUM_TASKS * SIZE
