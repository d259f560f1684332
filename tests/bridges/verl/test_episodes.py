"""Our episodes at verl's request: graded, spooled under the names of our own training, retried."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.bridges.verl.episodes import (
    EpisodeHost,
    EpisodeRequest,
    EpisodeSettings,
    ServerPolicy,
    require_plain_sampling,
)
from repairgym.bridges.verl.outputs import read_spool
from repairgym.config.algorithms import StepPenaltyConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, InputError, ModelReplyError, ModelServerError
from repairgym.inference.base import SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun, VerdictKind
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import Files, ScriptedBackend


def answer(files: Files, request: TestRequest) -> TestRun:
    outcome = TestOutcome.PASSED if "<=" in (files.get("m.py") or "") else TestOutcome.FAILED
    return TestRun(results={name: TestResult(outcome=outcome) for name in request.test_ids}, exit_status=0)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


@pytest.fixture
def host_with(task, tmp_path, renderer):
    def make(num_failures: int = 0) -> EpisodeHost:
        settings = EpisodeSettings(phase="rl", tasks="tasks", tokenizer="t", spool=str(tmp_path / "spool"))
        backend = ScriptedBackend(answer, num_failures)
        runner = Runner(settings.rollout, backend, lambda _: TaskLayers(tmp_path, tmp_path), renderer)
        return EpisodeHost(settings, runner, {task.id: task})

    return make


def row(task_id: str, split: str = "train", **more) -> dict:
    return {"extra_info": {"task_id": task_id, "split": split}, "uid": "0123456789", **more}


@pytest.mark.asyncio
async def test_an_episode_is_graded_and_spooled(host_with, task, tmp_path, renderer):
    request = EpisodeRequest.of_row(row(task.id, global_steps=3, session_id=2))
    # A script has no log-probabilities to learn from, so nothing but the reward of a failure comes back here.
    trajectory, outcome = await host_with().run(request, ScriptedPolicy("submit-at-once", renderer))
    assert trajectory.verdict.kind is VerdictKind.FAILED
    assert trajectory.id == f"rl/2/{task.id}/01234567#2"
    (spooled,) = read_spool(tmp_path / "spool")
    assert (spooled.trajectory.id, spooled.phase, spooled.step) == (trajectory.id, "rl", 2)
    assert outcome.reward == 0.0


@pytest.mark.asyncio
async def test_sandbox_trouble_is_tried_again_and_then_mrequest_out_and_counted(host_with, task, tmp_path, renderer):
    policy = ScriptedPolicy("oracle", renderer)
    trajectory, _ = await host_with(num_failures=1).run(EpisodeRequest.of_row(row(task.id)), policy)
    assert trajectory.verdict.kind is VerdictKind.PASSED
    trajectory, outcome = await host_with(num_failures=1000).run(
        EpisodeRequest.of_row(row(task.id, session_id=1)), policy
    )
    assert trajectory.verdict.kind is VerdictKind.INVALID
    assert outcome.rows == ()
    kinds = [spooled.trajectory.verdict.kind for spooled in read_spool(tmp_path / "spool")]
    assert kinds == [VerdictKind.PASSED, VerdictKind.INVALID]


def test_validations_are_evaluations_of_the_weights_after_the_step():
    request = EpisodeRequest.of_row(row("t", "validation", global_steps=3))
    assert request.step == 3


def test_rows_without_a_task_are_rejected():
    with pytest.raises(InputError, match="repairgym verl data"):
        EpisodeRequest.of_row({"prompt": []})


@pytest.mark.asyncio
async def test_an_unknown_task_is_rejected(host_with, renderer):
    with pytest.raises(InputError, match="task 'other'"):
        await host_with().run(EpisodeRequest.of_row(row("other")), ScriptedPolicy("oracle", renderer))


def test_settings_survive_the_file(tmp_path):
    settings = EpisodeSettings(
        phase="grpo",
        seed=4,
        tasks="a",
        tokenizer="b",
        spool="c",
        overlong="drop",
        reward=StepPenaltyConfig(threshold_turns=3),
        rollout=RolloutConfig(max_in_flight=2),
    )
    (tmp_path / "episodes.toml").write_text(to_toml(settings))
    assert load_config(EpisodeSettings, tmp_path / "episodes.toml") == settings


SAMPLING = SamplingParams(max_tokens=3, stop_token_ids=(9,), seed=1 << 40)


@dataclass
class Reply:
    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any] = field(default_factory=lambda: {"global_steps": 4})
    stop_reason: str | None = "completed"


class Client:
    """Answers with what it is given."""

    def __init__(self, reply: Reply | Exception) -> None:
        self.reply = reply
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Reply:
        self.asked.append((request_id, prompt_ids, sampling_params))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.mark.asyncio
@pytest.mark.parametrize(("ids", "is_stopped"), [([5, 9], True), ([5, 6, 7], False)])
async def test_an_answer_has_the_version_it_was_sampled_with(ids, is_stopped):
    client = Client(Reply(ids, [-0.5] * len(ids)))
    found = await ServerPolicy(client).generate("e~0", [1, 2], SAMPLING)
    assert (found.token_ids, found.policy_version, found.is_stopped) == (tuple(ids), 4, is_stopped)
    ((session, prompt, asked),) = client.asked
    assert (session, prompt) == ("e~0", [1, 2])
    assert {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}.items() <= asked.items()
    assert asked["stop_token_ids"] == [9]
    assert 0 <= asked["seed"] < 1 << 31


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply([], []), "0 tokens"),
        (Reply([1, 2, 3, 4], [-1.0] * 4), "4 tokens"),
        (Reply([1, 2], None), "0 log-probabilities"),
        (Reply([1, 2], [-1.0]), "1 log-probabilities"),
        (Reply([1], [-1.0], {}), "version"),
    ],
)
async def test_replies_that_cannot_be_learned_from(reply, problem):
    with pytest.raises(ModelReplyError, match=problem):
        await ServerPolicy(Client(reply)).generate("e", [1], SAMPLING)


@pytest.mark.asyncio
async def test_a_dead_server_is_trouble_of_the_server():
    with pytest.raises(ModelServerError, match="actor died"):
        await ServerPolicy(Client(RuntimeError("actor died"))).generate("e", [1], SAMPLING)


def test_another_distribution_than_the_plain_policys_is_refused():
    require_plain_sampling({"temperature": 1.0, "top_p": 1, "top_k": -1, "logprobs": True})
    with pytest.raises(ConfigError, match=r"top_p.*0\.9"):
        require_plain_sampling({"temperature": 1.0, "top_p": 0.9})
