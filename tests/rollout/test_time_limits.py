"""Waits for infrastructure end no episode: slow starts of sandboxes, places, queues, requests that failed."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from repairgym.agent.episode import Completion, Usage, reached_limit
from repairgym.agent.recording import Outcome, entries_of
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.answers import Answer
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import StopReason, Task, Trajectory, Turn, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.faults import FaultPlan, Faults, FaultyBackend

NO_FAULTS = FaultPlan(storm=0, slow_start=0, hang=0, lost=0, no_space=0, skew=0, server_down=0, work_s=0, hang_s=0.8)
LIMIT_S = 0.5
EPISODE = ("test", "edit < => <= @2", "test", "view", "submit")


class Speaker:
    """Says the texts of `EPISODE` in each session; takes ``think_s`` for each."""

    id = "speaker"

    def __init__(self, renderer: ChatRenderer, think_s: float = 0.0, queue_s: float = 0.0) -> None:
        self._renderer, self._think_s, self._queue_s = renderer, think_s, queue_s
        self._numbers: dict[str, count[int]] = {}

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        await asyncio.sleep(self._think_s)
        ids = self._renderer.action_ids(EPISODE[next(self._numbers.setdefault(session_id, count()))])
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=True,
            policy_version=0,
            queue_s=self._queue_s,
        )

    async def end_session(self, session_id: str) -> None:
        pass


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


async def play(
    plan: FaultPlan, task: Task, tree: Path, renderer: ChatRenderer, policy: Speaker, size: int = 1
) -> list[Trajectory]:
    pipeline = PipelineConfig(max_len_tokens=5000, max_turns=12, time_limit_s=LIMIT_S)
    config = RolloutConfig(
        pipeline=pipeline,
        engine=EngineConfig(max_len_tokens=5000),
        grading=GradingConfig(is_replayed=False, num_canaries=0),
        max_sandboxes=1,
    )
    runner = Runner(config, FaultyBackend(Faults(plan)), lambda task: TaskLayers(tree, tree), renderer)
    jobs = make_group("phase", 0, task.id, size, seed=1)
    return [ended async for ended in runner.run(jobs, {task.id: task}, policy)]


@pytest.mark.asyncio
async def test_slow_starts_and_waits_for_a_place_end_no_episode(task, tmp_path, renderer):
    slow = NO_FAULTS.model_copy(update={"slow_start": 1.0})
    ended = await play(slow, task, tmp_path, renderer, Speaker(renderer), size=2)
    assert [(one.stop_reason, one.verdict.kind) for one in ended] == [(StopReason.SUBMITTED, VerdictKind.PASSED)] * 2
    # What is waited for stays in the seconds of the turn.
    assert max(turn.wait_s for one in ended for turn in one.turns) > LIMIT_S
    assert all(turn.wait_s <= turn.generate_s + turn.tool_s for one in ended for turn in one.turns)


@pytest.mark.asyncio
async def test_a_slow_agent_is_cut_and_a_queue_is_no_slow_agent(task, tmp_path, renderer):
    think_s = LIMIT_S * 0.4
    slow, queued = [
        await play(NO_FAULTS, task, tmp_path, renderer, Speaker(renderer, think_s, queue_s))
        for queue_s in (0.0, think_s)
    ]
    assert [one.stop_reason for one in (*slow, *queued)] == [StopReason.TIME_LIMIT, StopReason.SUBMITTED]


def turn_of(generate_s: float, tool_s: float, wait_s: float) -> Turn:
    return Turn(
        action="test",
        tool="test",
        observation="passed 1",
        action_span=(0, 1),
        generate_s=generate_s,
        tool_s=tool_s,
        wait_s=wait_s,
    )


def test_the_limit_counts_turns_without_their_waits():
    config, usage = PipelineConfig(time_limit_s=100.0), Usage()
    completion = Completion("test", Answer("test", False, 0), True, (0, 1), 1)
    reasons = []
    for turn in (turn_of(50, 4000, 3990), turn_of(500, 30, 500), turn_of(10, 0.5, 0)):
        usage.add_turn(completion, turn, is_tool_call=True)
        reasons.append(reached_limit(config, usage, 0))
    assert reasons == [None, None, StopReason.TIME_LIMIT]


@pytest.mark.asyncio
async def test_a_branch_knows_the_waits_of_its_parent(task, tmp_path, renderer):
    (parent,) = await play(NO_FAULTS, task, tmp_path, renderer, Speaker(renderer, queue_s=0.25))
    outcomes = [entry for entry in entries_of(parent, 3, renderer.stop_token_ids) if isinstance(entry, Outcome)]
    assert [outcome.wait_s for outcome in outcomes] == [turn.wait_s for turn in parent.turns[:3]]
    assert all(outcome.wait_s >= 0.25 for outcome in outcomes)
