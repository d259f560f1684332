"""The episode loop: ledger invariant, format errors, limits, scripted policies; no sandbox is needed."""

from pathlib import Path
from typing import Any

import pytest

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.pipelines.base import CompactPipeline, EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.scripted import ScriptedPolicy, window_edits
from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import ConfigError, SandboxContentError, SandboxError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import StopReason, Task
from repairgym.sandbox.base import Sandbox
from repairgym.sandbox.cache import ExecutionCache

CONFIG = PipelineConfig(max_turns=6, max_len_tokens=400)


class Replies:
    """A policy that says given texts and records its prompts."""

    id = "replies"

    def __init__(self, renderer: ChatRenderer, texts: list[str], *, is_stopped: bool = True) -> None:
        self.renderer = renderer
        self.texts = iter(texts)
        self.prompts: list[list[int]] = []
        self.completions: list[list[int]] = []
        self.is_stopped = is_stopped
        self.ended: list[str] = []

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        ids = self.renderer.action_ids(next(self.texts))
        if not self.is_stopped:
            ids = ids[:-1][: sampling.max_tokens]
        self.prompts.append(list(prompt_ids))
        self.completions.append(ids)
        return Generation(
            token_ids=tuple(ids), log_probs=(-0.5,) * len(ids), is_stopped=self.is_stopped, policy_version=3
        )

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    texts = ["user\nassistant\nedit @1 < => <= test undo submit def f(a, b): return a < b\n"] * 20
    return ChatRenderer(train_tokenizer(texts, 400, 40))


async def no_sandbox(files: dict[str, str | None]) -> Sandbox:
    raise SandboxError("no sandbox in this test")


def context_of(task: Task, tree: Path) -> ToolContext:
    return ToolContext(task=task, workspace=Workspace(tree, task.base_files, no_sandbox))


def runner(policy, renderer, config: PipelineConfig = CONFIG, prompt: str = "look") -> EpisodeRunner:
    class Fixed(CompactPipeline):
        def initial_prompt(self, context: ToolContext, **values: Any) -> InitialPrompt:
            return InitialPrompt(prompt)

    return EpisodeRunner(Fixed(config, ToolServices(config, ExecutionCache())), policy, renderer)


@pytest.mark.asyncio
async def test_prompts_grow_by_completion_and_observation(task, tmp_path, renderer):
    policy = Replies(renderer, ["edit < => <= @2", "nonsense", "undo", "submit"])
    episode = await runner(policy, renderer).run("s", context_of(task, tmp_path), 0)
    for k in range(3):
        known = policy.prompts[k] + policy.completions[k]
        assert policy.prompts[k + 1][: len(known)] == known
    ids = episode.ledger.token_id.tolist()
    assert ids == policy.prompts[-1] + policy.completions[-1]
    for turn, completion in zip(episode.turns, policy.completions, strict=True):
        start, end = turn.action_span
        assert ids[start:end] == completion
        assert episode.ledger.is_action[start:end].all()
    assert episode.ledger.is_action.sum() == sum(map(len, policy.completions))
    assert policy.ended == ["s"]


def test_an_episode_opens_no_more_than_its_issue_tells(task, tmp_path):
    openings = []
    for level in ("file", "symptom"):
        told = task.model_copy(update={"labels": {"localization": level}})
        text = make_pipeline(CONFIG, ExecutionCache()).initial_prompt(context_of(told, tmp_path)).text
        openings.append(text.splitlines()[1:])
    head, nothing = openings
    assert head[0].startswith("@1 ")
    assert nothing == []


@pytest.mark.asyncio
async def test_edit_error_undo_and_submission(task, tmp_path, renderer):
    context = context_of(task, tmp_path)
    opening = make_pipeline(CONFIG, ExecutionCache()).initial_prompt(context).text
    assert opening.splitlines()[1:] == ["@1 def f(a, b):", "@2    return a < b"]
    policy = Replies(renderer, ["edit > => <= @2", "edit < => > @2", "undo", "edit < => <= @2", "submit"])
    episode = await runner(policy, renderer, prompt=opening).run("s", context, 0)
    assert [turn.observation for turn in episode.turns] == [
        "error: > is not in the window",
        "@2    return a > b",
        "undone",
        "@2    return a <= b",
        "submitted",
    ]
    assert [turn.error for turn in episode.turns] == ["tool", "", "", "", ""]
    assert episode.stop_reason is StopReason.SUBMITTED
    assert episode.files == {"m.py": "def f(a, b):\n    return a <= b\n"}


@pytest.mark.asyncio
async def test_a_malformed_action_is_an_observation(task, tmp_path, renderer):
    policy = Replies(renderer, ["erase everything", "edit\nedit", "submit"])
    episode = await runner(policy, renderer).run("s", context_of(task, tmp_path), 0)
    assert [(turn.tool, turn.error) for turn in episode.turns] == [(None, "format"), (None, "format"), ("submit", "")]
    assert episode.turns[0].observation.startswith("error: one line, one of")


@pytest.mark.asyncio
async def test_limits_end_the_episode(task, tmp_path, renderer):
    undo = Replies(renderer, ["undo"] * 9)
    episode = await runner(undo, renderer).run("s", context_of(task, tmp_path), 0)
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.TURN_LIMIT, 6)
    long = Replies(renderer, ["edit " * 60] * 9, is_stopped=False)
    episode = await runner(long, renderer).run("s", context_of(task, tmp_path), 0)
    assert episode.stop_reason is StopReason.TOKEN_LIMIT
    assert len(episode.ledger) <= CONFIG.max_len_tokens + 70
    assert all(turn.error == "format" for turn in episode.turns)


@pytest.mark.asyncio
async def test_a_sandbox_failure_is_raised_and_the_session_ends(task, tmp_path, renderer):
    policy = Replies(renderer, ["test"])
    with pytest.raises(SandboxError):
        await runner(policy, renderer).run("s", context_of(task, tmp_path), 0)
    assert policy.ended == ["s"]


@pytest.mark.asyncio
async def test_damage_by_the_agent_to_its_sandbox_is_an_observation(task, tmp_path, renderer):
    async def full(files: dict[str, str | None]) -> Sandbox:
        raise SandboxContentError("no space left in this test")

    context = ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, full))
    episode = await runner(Replies(renderer, ["test", "submit"]), renderer).run("s", context, 0)
    assert (episode.turns[0].error, episode.turns[0].observation) == ("tool", "error: no space left in this test")
    assert episode.stop_reason is StopReason.SUBMITTED


@pytest.mark.asyncio
async def test_oracle_and_do_nothing(task, tmp_path, renderer):
    for name, files in (("oracle", task.gold_files), ("submit-at-once", {})):
        policy = ScriptedPolicy(name, renderer)
        policy.begin_session("s", task, 0, make_pipeline(CONFIG, ExecutionCache()))
        config = PipelineConfig(max_len_tokens=10_000)
        episode = await runner(policy, renderer, config).run("s", context_of(task, tmp_path), 0)
        assert episode.files == files


def test_window_edits_know_the_fix(task):
    fixes, edits = window_edits(task)
    assert [str(fix) for fix in fixes] == ["< => <= @2"]
    assert len(edits) == 5


def test_unknown_scripts_and_tools_are_config_errors(renderer):
    with pytest.raises(ConfigError, match="oracle"):
        ScriptedPolicy("wizard", renderer)
    with pytest.raises(ConfigError, match="teleport"):
        make_pipeline(PipelineConfig(tools=("teleport",)), ExecutionCache())
