"""Limits, loops, unsubmitted changes, and cuts of the history."""

from __future__ import annotations

import numpy as np
import pytest

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import ElisionConfig, PaperBConfig, PipelineConfig, SummaryConfig
from repairgym.errors import SandboxContentError, SandboxError
from repairgym.records import StopReason
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted import ScriptedSandbox, ScriptedSession, scripted_answer

FIX = "edit < => <= @2"


@pytest.fixture
def play(task, tmp_path, chat_renderer, make_speaker):
    """Plays given answers in a pipeline; gives the episode and the policy."""

    async def no_sandbox(files):
        raise SandboxError("no sandbox in this test")

    async def run(config: PipelineConfig, *texts: str, cost_usd: float = 0.0, create=no_sandbox):
        policy = make_speaker(*texts, cost_usd=cost_usd)
        pipeline = make_pipeline(config, ExecutionCache())
        context = ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, create))
        runner = EpisodeRunner(pipeline, policy, chat_renderer)
        return await runner.run("s", context, 0), policy

    return run


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limits", "reason", "num_turns"),
    [
        ({"max_turns": 2}, StopReason.TURN_LIMIT, 2),
        ({"max_tool_calls": 2}, StopReason.TOOL_CALL_LIMIT, 3),
        ({"max_output_tokens": 12}, StopReason.OUTPUT_TOKEN_LIMIT, None),
        ({"max_cost_usd": 0.25}, StopReason.COST_LIMIT, 3),
        ({"time_limit_s": 1e-9}, StopReason.TIME_LIMIT, 1),
        ({"loop": "stop"}, StopReason.LOOP, 5),
        ({"max_len_tokens": 100}, StopReason.TOKEN_LIMIT, None),
    ],
)
async def test_each_limit_has_its_stop_reason(play, limits, reason, num_turns):
    episode, policy = await play(PipelineConfig(**limits), "view", "nonsense", *["view"] * 30, cost_usd=0.1)
    assert episode.stop_reason is reason
    assert {turn.cost_usd for turn in episode.turns} == {0.1}
    if num_turns is not None:
        assert len(episode.turns) == num_turns
    if reason is StopReason.OUTPUT_TOKEN_LIMIT:
        assert sum(len(ids) for _, ids in policy.seen) == 12


@pytest.mark.asyncio
async def test_loops_are_labelled_and_go_on(play):
    texts = ("view", "view", "view", "view", FIX, "view", "view", "submit")
    episode, _ = await play(PipelineConfig(max_turns=8), *texts)
    assert [turn.is_loop for turn in episode.turns] == [False, False, True, True, False, False, False, False]
    assert episode.stop_reason is StopReason.SUBMITTED


@pytest.mark.asyncio
async def test_unsubmitted_changes_are_scored_or_not(play):
    for is_scored, files in ((True, {"m.py": "def f(a, b):\n    return a <= b\n"}), (False, {})):
        config = PipelineConfig(max_turns=1, is_unsubmitted_scored=is_scored)
        episode, _ = await play(config, FIX)
        assert episode.files == files
    submitted, _ = await play(PipelineConfig(is_unsubmitted_scored=False), FIX, "submit")
    assert submitted.files


@pytest.mark.asyncio
@pytest.mark.parametrize("thinking", ["kept", "dropped"])
async def test_thoughts_are_no_part_of_the_action(play, chat_renderer, thinking):
    texts = (f"<think>\nwhich one?\n</think>\n\n{FIX}", "<think>endless", "<think>x</think>submit")
    episode, policy = await play(PipelineConfig(thinking=thinking), *texts)
    assert [turn.tool for turn in episode.turns] == ["edit", None, "submit"]
    assert episode.turns[1].error == "format"
    assert ("which one" in chat_renderer.decode(policy.seen[-1][0])) is (thinking == "kept")
    assert len(episode.ledger.branches) == (2 if thinking == "dropped" else 0)


@pytest.mark.asyncio
async def test_a_thought_nobody_asked_for_is_no_part_of_the_action(play):
    episode, _ = await play(PipelineConfig(), "<think>submit", "<think>x</think>submit")
    assert [turn.error for turn in episode.turns] == ["format", ""]
    assert episode.turns[1].action == "<think>x</think>submit"


@pytest.mark.asyncio
async def test_old_observations_are_elided_every_few_turns(play, chat_renderer):
    config = PipelineConfig(context=ElisionConfig(num_kept=1, every_turns=2), max_len_tokens=5000)
    episode, policy = await play(config, "view", "view m.py:2", "view", "view", "view", "submit")
    prompts = [chat_renderer.decode(ids) for ids, _ in policy.seen]
    assert [prompt.count("left out]") for prompt in prompts] == [0, 0, 0, 2, 2, 4]
    assert len(episode.ledger.branches) == 3
    assert episode.ledger.is_action.sum() == sum(len(ids) for _, ids in policy.seen)


@pytest.mark.asyncio
async def test_a_full_history_begins_again_with_a_summary(play, chat_renderer):
    config = PipelineConfig(context=SummaryConfig(full_share=0.5), max_len_tokens=400, max_turns=60)
    episode, policy = await play(config, FIX, *["view"] * 12, "submit")
    prompts = [chat_renderer.decode(ids) for ids, _ in policy.seen]
    first = next(number for number, prompt in enumerate(prompts) if "WHAT WAS DONE SO FAR" in prompt)
    assert "+    return a <= b" in prompts[first]
    assert f"- {FIX} -> @2    return a <= b" in prompts[first]
    assert len(policy.seen[first][0]) < len(policy.seen[first - 1][0]) + 200
    assert len(episode.ledger.branches) >= 2
    np.testing.assert_array_equal(
        episode.ledger.token_id[slice(*episode.turns[first].action_span)], policy.seen[first][1]
    )


@pytest.mark.asyncio
async def test_too_many_changes_to_read_end_no_episode_where_its_history_is_cut(play):
    class Flooded(ScriptedSandbox):
        async def changed_files(self):
            raise SandboxContentError("too many files in this test")

    async def create(files):
        return Flooded(files, scripted_answer())

    config = PaperBConfig(
        has_git=False, opening_prompt="", context=SummaryConfig(full_share=0.1), max_len_tokens=9000, max_turns=30
    )
    shell = "```command\nshell true\n```"
    episode, _ = await play(config, *[shell] * 30, create=create)
    assert episode.stop_reason is StopReason.TURN_LIMIT
    assert len(episode.ledger.branches) >= 2


@pytest.mark.asyncio
async def test_half_a_character_in_a_command_is_a_mistake_of_the_agent(play):
    class Encoding(ScriptedSession):
        async def run(self, command, *, timeout_s, stdin=b""):
            return ExecResult(exit_status=0, stdout=command.encode("utf-8", "surrogateescape"))

    class Encoded(ScriptedSandbox):
        async def open_session(self, name="main", env=None):
            return Encoding(name)

    async def create(files):
        return Encoded(files, scripted_answer())

    tools = ("shell", "open", "submit")
    config = PaperBConfig(
        tools=tools, action_format="native", system_prompt="", opening_prompt="", max_len_tokens=9000, has_git=False
    )
    call = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
    episode, _ = await play(
        config,
        call.format("shell", '{"command": "echo \\ud83d"}'),
        call.format("open", '{"file": "\\ud83d.py"}'),
        call.format("shell", '{"command": "echo \\ud83d\\ude00"}'),
        call.format("submit", "{}"),
        create=create,
    )
    assert [turn.error for turn in episode.turns] == ["tool", "tool", "", ""]
    assert "surrogates not allowed" in episode.turns[0].observation
    assert "\\ud83d.py is no text file" in episode.turns[1].observation
    assert "echo \U0001f600" in episode.turns[2].observation


@pytest.mark.asyncio
async def test_json_actions_reach_the_same_tools(play):
    tools = ("open", "edit_range", "submit")
    config = PaperBConfig(tools=tools, action_format="native", system_prompt="", opening_prompt="", max_len_tokens=9000)
    call = '<tool_call>{{"name": "edit", "arguments": {}}}</tool_call>'
    episode, _ = await play(
        config,
        call.format('{"line_range": 2}'),
        call.format('{"line_range": "2:2", "replacement_text": "    return a <= b", "file": "m.py"}'),
        '<tool_call>{"name": "submit", "arguments": {}}</tool_call>',
    )
    assert [turn.error for turn in episode.turns] == ["tool", "", ""]
    assert episode.turns[0].observation.startswith("error: line_range: input should be a valid string; usage: edit")
    assert episode.files == {"m.py": "def f(a, b):\n    return a <= b\n"}
