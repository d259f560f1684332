"""Paper A's pipelines: the outer loop, cached starts, the oracle and the do-nothing agent, a locked knowledge base."""

import asyncio
import sqlite3

import pytest

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.paper_a import Start, compare, load_starts, save_starts
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.knowledge import KnowledgeBase, make_fix
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import FullConfig, KnowledgeConfig, SimplifiedConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import SandboxContentError, TaskError
from repairgym.inference.base import Generation
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import MainError, StopReason, TestOutcome, TestResult, TestRun, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend

BROKEN, HALF, FIXED = (f"def f(a, b):\n    return a {sign} b\n" for sign in ("<", ">", "<="))
SMALL = {
    "tools": ("write", "test", "submit"),
    "action_format": "compact",
    "system_prompt": "",
    "opening_prompt": "paper_a/compact",
    "is_place_opened": True,
    "max_turns": 6,
    "max_len_tokens": 4000,
    "max_action_tokens": 400,
}


def answer(files, request):
    text = files.get("m.py") or ""
    outcome = TestOutcome.PASSED if "<=" in text else TestOutcome.FAILED
    message = "ValueError: half" if ">" in text else "assert False"
    results = {name: TestResult(outcome=outcome, message=message) for name in request.test_ids}
    return TestRun(results=results, exit_status=0)


class Replies:
    """A policy that says given texts and keeps the prompts it saw."""

    id = "replies"

    def __init__(self, renderer, texts, before=()):
        """``before``: number of an answer -> what happens first."""
        self.renderer, self.texts, self.prompts, self.before = renderer, iter(texts), [], dict(before)

    async def generate(self, session_id, prompt_ids, sampling):
        self.before.get(len(self.prompts), lambda: None)()
        self.prompts.append(self.renderer.decode(list(prompt_ids)))
        ids = self.renderer.action_ids(next(self.texts))
        return Generation(token_ids=tuple(ids), log_probs=(-0.5,) * len(ids), is_stopped=True, policy_version=1)

    async def end_session(self, session_id):
        pass


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(train_tokenizer(["user assistant write test submit def f(a, b): return a < b"] * 9, 400, 40))


@pytest.fixture
def backend():
    return ScriptedBackend(answer)


@pytest.fixture
def context(task, tmp_path, backend):
    async def create(files):
        return await backend.create(SandboxSpec(environment=tmp_path, tree=tmp_path, files=files))

    return ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, create))


@pytest.fixture
def knowledge(task, tmp_path):
    """A knowledge base of four fixes of other tasks for the tests' first error."""
    path = tmp_path / "fixes.db"
    with KnowledgeBase.create(path) as base:
        for number in range(4):
            other = task.model_copy(update={"id": f"other-{number}"})
            error = MainError(error_class="test", message="assert False")
            base.add(make_fix(other, error, f"--- a/m.py\n+++ b/m.py\n+hint {number}"), other)
    return KnowledgeConfig(path=str(path), num_fixes=4, busy_timeout_s=0.01)


async def lead(config, policy, renderer, context):
    pipeline = make_pipeline(config, ExecutionCache())
    return await EpisodeRunner(pipeline, policy, renderer).run("s", context, 0)


def write(text, path="m.py"):
    return f'write {path} "{text}"'.replace("\n", "\\n")


@pytest.mark.asyncio
async def test_another_error_keeps_the_changes_and_resets_the_context(context, renderer):
    policy = Replies(renderer, [write(HALF), "submit", write(FIXED), "submit"])
    episode = await lead(FullConfig(**SMALL), policy, renderer, context)
    assert [one.outcome for one in episode.attempts] == ["other_error", "passed"]
    assert [one.error.message for one in episode.attempts] == ["assert False", "ValueError: half"]
    assert [one.first_turn for one in episode.attempts] == [0, 2]
    assert episode.stop_reason is StopReason.SUBMITTED
    assert episode.files == {"m.py": FIXED}
    assert policy.prompts[2].count("assistant") == 1, "nothing of the first attempt but its changes"
    assert "ValueError: half" in policy.prompts[2]
    assert "a > b" in policy.prompts[2]
    assert len(episode.ledger.branches) == 2


@pytest.mark.asyncio
async def test_the_same_error_takes_back_the_changes_and_tries_the_next_fix(context, renderer, knowledge):
    junk = [write("junk", f"junk{number}.txt") for number in range(9)]
    policy = Replies(renderer, [text for line in junk for text in (line, "submit")])
    config = FullConfig(**SMALL, knowledge=knowledge, max_retries=3)
    episode = await lead(config, policy, renderer, context)
    assert [one.outcome for one in episode.attempts] == ["same_error"] * 4
    assert len({one.fix_id for one in episode.attempts}) == 4
    assert list(episode.files) == ["junk3.txt"], "each attempt starts from what was there before the one before"
    assert episode.stop_reason is StopReason.SUBMITTED
    hints = [prompt.partition("hint ")[2][:1] for prompt in policy.prompts[::2]]
    assert sorted(hints) == ["0", "1", "2", "3"]


@pytest.mark.asyncio
async def test_a_retry_returns_to_the_last_progress(context, renderer):
    texts = [write(HALF), "submit", write("junk", "junk.txt"), "submit", write(FIXED), "submit"]
    episode = await lead(FullConfig(**SMALL), Replies(renderer, texts), renderer, context)
    assert [one.outcome for one in episode.attempts] == ["other_error", "same_error", "passed"]
    assert episode.files == {"m.py": FIXED}


@pytest.mark.asyncio
async def test_errors_that_come_and_go_end_at_the_most_attempts(context, renderer):
    texts = [text for _ in range(9) for text in (write(HALF), "submit", write(BROKEN), "submit")]
    episode = await lead(FullConfig(**SMALL, max_attempts=5), Replies(renderer, texts), renderer, context)
    assert [one.outcome for one in episode.attempts] == ["other_error"] * 5


@pytest.mark.asyncio
async def test_a_state_that_cannot_be_built_is_the_agents_failure(context, renderer, backend):
    create = context.workspace._create_sandbox

    async def full_of_junk(files):
        if "junk.txt" in files:
            raise SandboxContentError("no room for the files")
        return await create(files)

    context.workspace._create_sandbox = full_of_junk
    texts = [write("junk", "junk.txt"), "submit", write(FIXED), "submit"]
    episode = await lead(FullConfig(**SMALL), Replies(renderer, texts), renderer, context)
    assert [one.outcome for one in episode.attempts] == ["same_error", "passed"]
    assert episode.files == {"m.py": FIXED}


@pytest.mark.asyncio
async def test_limits_count_for_each_attempt(context, renderer):
    config = FullConfig(**{**SMALL, "max_turns": 50}, max_tool_calls=3, max_retries=1)
    episode = await lead(config, Replies(renderer, ["test"] * 99), renderer, context)
    assert [one.stop_reason for one in episode.attempts] == [StopReason.TOOL_CALL_LIMIT] * 2
    assert len(episode.turns) == 6


@pytest.mark.asyncio
async def test_the_simplified_pipeline_has_one_attempt(context, renderer, knowledge):
    config = SimplifiedConfig(**SMALL, knowledge=knowledge)
    policy = Replies(renderer, [write(HALF), "submit"])
    episode = await lead(config, policy, renderer, context)
    (attempt,) = episode.attempts
    assert (attempt.outcome, attempt.stop_reason) == ("unknown", StopReason.SUBMITTED)
    assert attempt.fix_id
    assert "hint" in policy.prompts[0]


@pytest.mark.asyncio
async def test_cached_starts_need_no_build(context, renderer, task, tmp_path, backend):
    error = MainError(error_class="build_tool", message="as cached, with \u2028 and \x85")
    save_starts(tmp_path / "starts.jsonl", [Start(task_id=task.id, error=error)])
    assert load_starts(tmp_path / "starts.jsonl")[task.id].error == error
    config = SimplifiedConfig(**SMALL, starts=str(tmp_path / "starts.jsonl"))
    episode = await lead(config, Replies(renderer, ["submit"]), renderer, context)
    assert episode.attempts[0].error == error
    assert backend.sandboxes == []
    context.task = task.model_copy(update={"id": "absent"})
    with pytest.raises(TaskError, match="has no start of absent"):
        await lead(config, Replies(renderer, ["submit"]), renderer, context)


@pytest.mark.parametrize(("message", "outcome"), [("assert 3", "same_error"), ("ValueError: x", "other_error")])
def test_errors_are_compared_by_class_and_message(message, outcome):
    before = MainError(error_class="test", message="assert 1", path="t.py::t")
    assert compare(before, before.model_copy(update={"message": message})) == outcome
    assert compare(before, None) == "passed"


# --- whole rollouts ------------------------------------------------------------------------------------------------


def runner(config, backend, tree, renderer):
    rollout = RolloutConfig(pipeline=config, engine=EngineConfig(max_len_tokens=config.max_len_tokens), max_attempts=2)
    return Runner(rollout, backend, lambda task: TaskLayers(tree, tree), renderer)


async def run_scripted(name, config, task, backend, tree, renderer):
    (job,) = make_group("phase", 0, task.id, 1, seed=1)
    made = runner(config, backend, tree, renderer)
    return await made.run_job(job, task, ScriptedPolicy(name, renderer), 1.0)


@pytest.mark.asyncio
@pytest.mark.parametrize("config", [FullConfig(), SimplifiedConfig(), FullConfig(**SMALL), SimplifiedConfig(**SMALL)])
@pytest.mark.parametrize(("name", "kind"), [("oracle", VerdictKind.PASSED), ("submit-at-once", VerdictKind.FAILED)])
async def test_the_oracle_solves_by_the_tools_and_doing_nothing_does_not(
    name, kind, config, task, tmp_path, backend, renderer
):
    found = await run_scripted(name, config, task, backend, tmp_path, renderer)
    assert found.verdict.kind is kind
    if name == "oracle":
        writes = {"write", "write_file"} & set(config.tools)
        assert {turn.tool for turn in found.turns} == {
            *writes,
            "submit" if "submit" in config.tools else "validate_and_build",
        }
        assert all(not turn.error for turn in found.turns)
        assert len(found.attempts) == 1


@pytest.mark.asyncio
async def test_a_knowledge_base_that_stays_locked_ends_the_episode_as_invalid_with_its_turns(
    task, tmp_path, backend, renderer, knowledge
):
    texts = [write("x", "x.txt"), "ask_for_help assert False", "submit"]
    config = SimplifiedConfig(**{**SMALL, "tools": (*SMALL["tools"], "ask_for_help")}, knowledge=knowledge)
    locker = sqlite3.connect(knowledge.path, isolation_level=None)
    policy = Replies(renderer, texts, before={1: lambda: locker.execute("BEGIN EXCLUSIVE")})
    first, second = make_group("phase", 0, task.id, 2, seed=1)
    made = runner(config, backend, tmp_path, renderer)
    found = await made.run_job(first, task, policy, 1.0)
    assert (found.verdict.kind, found.stop_reason) == (VerdictKind.INVALID, StopReason.INFRASTRUCTURE)
    assert "locked" in found.verdict.reason
    assert [turn.tool for turn in found.turns] == ["write"], "nothing of what was done is lost"
    locker.execute("ROLLBACK")
    locker.close()
    again = await made.run_job(second, task, Replies(renderer, texts), 1.0)
    assert [turn.tool for turn in again.turns] == ["write", "ask_for_help", "submit"]
    assert "fix " in again.turns[1].observation


@pytest.mark.asyncio
async def test_a_knowledge_base_that_is_locked_for_a_moment_is_waited_for(task, context, renderer, knowledge):
    locker = sqlite3.connect(knowledge.path, isolation_level=None, check_same_thread=False)
    config = SimplifiedConfig(**SMALL, knowledge=knowledge.model_copy(update={"busy_timeout_s": 60.0}))
    pipeline = make_pipeline(config, ExecutionCache())
    locker.execute("BEGIN EXCLUSIVE")
    asyncio.get_running_loop().call_later(0.05, lambda: locker.execute("ROLLBACK"))
    runs = EpisodeRunner(pipeline, Replies(renderer, ["submit"]), renderer)
    episode = await runs.run("s", context, 0)
    assert (episode.failure, episode.stop_reason) == ("", StopReason.SUBMITTED)
    assert episode.attempts[0].fix_id
    locker.close()
