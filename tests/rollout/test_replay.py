"""Replays: what was said is said again token by token; what is read may differ in nothing but times and names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repairgym.agent.allowance import Allowance
from repairgym.agent.recording import normalize
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import StopReason, Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.replay import Replay, compare, replay
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

CONFIG = RolloutConfig(pipeline=PipelineConfig(max_turns=5))


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


def make_runner(
    tree: Path, renderer: ChatRenderer, message: Callable[[], str], config: RolloutConfig = CONFIG
) -> Runner:
    return Runner(
        config,
        ScriptedBackend(lambda files, request: scripted_answer(message())(files, request)),
        lambda task: TaskLayers(tree, tree),
        renderer,
    )


def record_and_replay(
    task: Task, tree: Path, renderer: ChatRenderer, then: Callable[[], str]
) -> tuple[list[Trajectory], list[Replay]]:
    async def both() -> tuple[list[Trajectory], list[Replay]]:
        jobs = make_group("teacher", 0, task.id, 12, seed=1)
        first = make_runner(tree, renderer, lambda: "took 0.25 s in /tmp/tmpa1b2")
        stored = [t async for t in first.run(jobs, {task.id: task}, ScriptedPolicy("random", renderer))]
        second = make_runner(tree, renderer, then)
        return stored, [one async for one in replay(stored, {task.id: task}, second, renderer)]

    return asyncio.run(both())


def test_episodes_replay_in_new_sandboxes(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    stored, found = record_and_replay(task, tmp_path, renderer, lambda: "took 0.31 s in /tmp/tmpc3d4")
    assert {one.difference for one in found} == {""}
    assert {one.trajectory_id for one in found} == {one.id for one in stored}
    assert sum(one.num_turns for one in found) == sum(one.num_equal + one.num_normalized for one in found)
    assert any(one.num_normalized for one in found)  # an observation held the time


def test_what_came_out_differently_is_told(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    stored, found = record_and_replay(task, tmp_path, renderer, lambda: "took a while")
    has_tested = {t.id for t in stored if any("took" in turn.observation for turn in t.turns)}
    assert has_tested
    assert {one.trajectory_id for one in found if one.difference} == has_tested
    assert any("'0.25 s" in one.difference or "<duration>" in one.difference for one in found)


def test_patch_turns_and_verdict_are_compared(trajectory_maker: Callable[..., Trajectory]) -> None:
    stored = trajectory_maker()
    assert compare(stored, stored).difference == ""
    assert compare(stored, replace(stored, final_patch="")).difference == "the patch differs"
    failed = trajectory_maker(kind=VerdictKind.FAILED)
    assert compare(stored, failed).difference.startswith("the verdict passed became failed")
    assert compare(stored, replace(stored, turns=stored.turns[:2])).difference == "3 turns became 2"


def test_a_replay_has_the_ledger_of_the_episode(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    from repairgym.agent.scripted import ReplayPolicy

    async def both() -> tuple[Trajectory, Trajectory]:
        (job,) = make_group("teacher", 0, task.id, 1, seed=1)
        runner = make_runner(tmp_path, renderer, lambda: "no")
        stored = await runner.run_job(job, task, ScriptedPolicy("oracle", renderer), 1.0)
        ledger = stored.ledger
        versions = np.where(ledger.is_action, np.arange(len(ledger)), -1).astype(np.int32)  # changed at every token
        stored = replace(stored, ledger=replace(ledger, policy_version=versions))
        return stored, await runner.run_job(job, task, ReplayPolicy([stored], renderer), 1.0)

    stored, again = asyncio.run(both())
    for name in ("token_id", "is_action", "log_prob", "policy_version"):
        assert np.array_equal(getattr(stored.ledger, name), getattr(again.ledger, name))


def test_an_episode_that_a_search_stopped_ends_there_again(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    async def both() -> tuple[Trajectory, Replay]:
        pipeline = PipelineConfig(max_turns=5, is_unsubmitted_scored=False)
        runner = make_runner(tmp_path, renderer, lambda: "no", CONFIG.model_copy(update={"pipeline": pipeline}))
        (job,) = make_group("teacher", 0, task.id, 1, seed=1)
        job = replace(job, allowance=Allowance(max_turns=1))
        stored = await runner.run_job(job, task, ScriptedPolicy("oracle", renderer), 1.0)
        (found,) = [one async for one in replay([stored], {task.id: task}, runner, renderer)]
        return stored, found

    stored, found = asyncio.run(both())
    assert stored.stop_reason is StopReason.SEARCH_LIMIT
    assert stored.final_patch
    assert found.difference == ""


def test_a_replay_continues_after_a_sandbox_that_failed(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    num_runs = 0

    def fail_once() -> str:
        nonlocal num_runs
        num_runs += 1
        if num_runs == 1:
            raise SandboxError("the sandbox of the first test")
        return "no"

    async def both() -> tuple[list[Trajectory], list[Replay]]:
        jobs = make_group("teacher", 0, task.id, 1, seed=1)
        policy = ScriptedPolicy("teacher", renderer)
        stored = [t async for t in make_runner(tmp_path, renderer, lambda: "no").run(jobs, {task.id: task}, policy)]
        runner = make_runner(tmp_path, renderer, fail_once)
        return stored, [one async for one in replay(stored, {task.id: task}, runner, renderer)]

    stored, (found,) = asyncio.run(both())
    assert len(stored[0].turns) > 1
    assert num_runs > 1
    assert found.difference == ""


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("1 passed in 0.03s", "1 passed in <duration>"),
        ("at 2026-01-02 03:04:05.678", "at <time>"),
        ("File /tmp/pytest-of-agent/x", "File <temporary>/x"),
        ("<f object at 0x7f0a1b2c3d4e>", "<f object at <address>>"),
        ("assert 0x10 == 16 and 3 s", "assert 0x10 == 16 and 3 s"),
        ("/tmp/m.py:12: 1.5 == 2.5", "/tmp/m.py:12: 1.5 == 2.5"),
    ],
)
def test_only_what_no_two_runs_share_is_replaced(text: str, normal: str) -> None:
    assert normalize(text) == normal
