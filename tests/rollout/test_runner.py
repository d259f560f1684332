"""Runner: each job gives one trajectory, sandbox trouble ends as invalid, ids follow from the job."""

from pathlib import Path

import pytest

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import GradingConfig, JudgeConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import StopReason, VerdictKind
from repairgym.rollout.jobs import make_group, make_groups
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

CONFIG = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=5000, max_turns=12),
    engine=EngineConfig(max_len_tokens=5000),
    backoff_s=0.0,
)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


def make_runner(backend: ScriptedBackend, tree: Path, renderer: ChatRenderer) -> Runner:
    return Runner(CONFIG, backend, lambda task: TaskLayers(tree, tree), renderer)


async def run_all(name, task, backend, tree, renderer, size=4):
    runner = make_runner(backend, tree, renderer)
    jobs = make_group("phase", 0, task.id, size, seed=1)
    policy = ScriptedPolicy(name, renderer)
    return [trajectory async for trajectory in runner.run(jobs, {task.id: task}, policy)]


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "kind"), [("oracle", VerdictKind.PASSED), ("submit-at-once", VerdictKind.FAILED)])
async def test_scripted_policies_bound_the_scale(name, kind, task, tmp_path, renderer):
    found = await run_all(name, task, ScriptedBackend(scripted_answer("no")), tmp_path, renderer)
    assert [t.verdict.kind for t in found] == [kind] * 4
    assert sorted(t.id for t in found) == [f"phase/0/tiny-1#{k}" for k in range(4)]


@pytest.mark.asyncio
async def test_the_oracle_writes_files_longer_than_the_context(task, tmp_path, renderer):
    long = "def f(a, b):\n    return a <= b\n" + "# padding\n" * 5000
    large = task.model_copy(update={"gold_files": {**task.gold_files, "m.py": long, "n.py": long}})
    found = await run_all("oracle", large, ScriptedBackend(scripted_answer("no")), tmp_path, renderer, size=1)
    assert [(t.verdict.kind, t.stop_reason) for t in found] == [(VerdictKind.PASSED, StopReason.SUBMITTED)]


@pytest.mark.asyncio
async def test_the_teacher_is_better_than_nothing_and_worse_than_the_oracle(task, tmp_path, renderer):
    found = await run_all("teacher", task, ScriptedBackend(scripted_answer("no")), tmp_path, renderer, size=60)
    num_passed = sum(t.verdict.kind is VerdictKind.PASSED for t in found)
    assert 15 < num_passed < 60
    tools = {turn.tool for t in found for turn in t.turns}
    assert {"edit", "test", "undo", "submit"} <= tools


@pytest.mark.asyncio
async def test_equal_jobs_give_equal_episodes(task, tmp_path, renderer):
    first, second = [
        await run_all("random", task, ScriptedBackend(scripted_answer("no")), tmp_path, renderer, size=8)
        for _ in range(2)
    ]
    key = {t.id: [turn.action for turn in t.turns] for t in first}
    assert key == {t.id: [turn.action for turn in t.turns] for t in second}


@pytest.mark.asyncio
async def test_patches_are_diffs_against_the_agents_base(task, tmp_path, renderer):
    (trajectory, *_) = await run_all("oracle", task, ScriptedBackend(scripted_answer("no")), tmp_path, renderer)
    assert "-    return a < b\n+    return a <= b\n" in trajectory.final_patch


@pytest.mark.asyncio
async def test_trouble_is_retried_then_invalid(task, tmp_path, renderer):
    runner = make_runner(ScriptedBackend(scripted_answer("no"), num_failures=4), tmp_path, renderer)
    policy = ScriptedPolicy("oracle", renderer)
    jobs = make_group("phase", 0, task.id, 2, seed=1)
    first = await runner.run_job(jobs[0], task, policy, 1.0)
    assert first.verdict.kind is VerdictKind.INVALID
    second = await runner.run_job(jobs[1], task, policy, 1.0)
    assert second.verdict.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_an_episode_that_cannot_run_keeps_its_place(task, tmp_path, renderer):
    backend = ScriptedBackend(scripted_answer("no"), num_failures=1000)
    testing = task.model_copy(update={"id": "tiny-2"})
    found = await run_all("teacher", testing, backend, tmp_path, renderer, size=3)
    assert len(found) == 3
    assert all(t.verdict.kind is VerdictKind.INVALID for t in found)
    assert {t.stop_reason for t in found} <= {StopReason.INFRASTRUCTURE, StopReason.SUBMITTED}


def test_a_judge_without_a_model_is_an_error_before_any_episode(tmp_path, renderer):
    config = CONFIG.model_copy(update={"grading": GradingConfig(judge=JudgeConfig(is_enabled=True))})
    with pytest.raises(ConfigError, match=r"grading\.judge\.model is empty"):
        Runner(config, ScriptedBackend(scripted_answer("no")), lambda task: TaskLayers(tmp_path, tmp_path), renderer)


def test_groups_have_one_task_and_distinct_seeds():
    jobs = make_groups("rl", 3, ["a", "b"], 8, seed=0)
    assert {(job.group_id, job.task_id) for job in jobs} == {("rl/3/a", "a"), ("rl/3/b", "b")}
    assert len({job.seed for job in jobs}) == 16
    assert jobs == make_groups("rl", 3, ["a", "b"], 8, seed=0)
    assert jobs != make_groups("rl", 3, ["a", "b"], 8, seed=1)
