"""Episodes whose model is behind a server: nothing is lost, nothing is a reward of 0, no key is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from repairgym.config.models import EndpointConfig, Price
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, ServerRejectedError
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.learning.samples import policy_sample, supervised_sample
from repairgym.records import StopReason, Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_group
from repairgym.rollout.policies import PolicyCache
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer
from repairgym.testing.servers import Fault, FaultyServer

CONFIG = RolloutConfig(num_workers=1, max_in_flight=1, pipeline=PipelineConfig(max_turns=4))
KEY = "sk-a-secret-that-nobody-may-see"


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))


def run(
    faults: list[Fault], text: str, task: Task, tree: Path, renderer: ChatRenderer, num: int = 1
) -> tuple[list[Trajectory], dict[str, float]]:
    async def run_all() -> tuple[list[Trajectory], dict[str, float]]:
        async with await FaultyServer(faults, text).serve() as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            endpoint = EndpointConfig(base_url=url, model="tiny", max_attempts=2, backoff_s=0.001)
            policies = PolicyCache(CONFIG, renderer)
            runner = Runner(
                CONFIG, ScriptedBackend(scripted_answer("no")), lambda task: TaskLayers(tree, tree), renderer
            )
            policy = await policies.get(PolicyRef("openai-tiny", endpoint=endpoint))
            jobs = make_group("rollout", 0, task.id, num, seed=1)
            try:
                return [t async for t in runner.run(jobs, {task.id: task}, policy)], policies.counters()
            finally:
                await policies.close()

    return asyncio.run(run_all())


def test_a_text_only_server_repairs_and_rl_refuses_it(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    (found,), counters = run([Fault.OK], "edit < => <= @2", task, tmp_path, renderer)
    assert found.verdict.kind is VerdictKind.PASSED  # an edit that is not submitted is scored
    assert found.stop_reason is StopReason.TURN_LIMIT
    assert counters["endpoint/num_attempts"] == 4
    assert supervised_sample(found).num_learned > 0
    with pytest.raises(ValueError, match="policy-gradient samples must come from a policy that returns them"):
        policy_sample(found, 1.0)


def test_trouble_of_the_server_is_invalid_and_keeps_the_turns(
    task: Task, tmp_path: Path, renderer: ChatRenderer
) -> None:
    faults = [Fault.OK, *[Fault.SERVER_ERROR] * 4, Fault.OK]  # the second attempt makes no new turn
    found, counters = run(faults, "edit < => <= @2", task, tmp_path, renderer, num=2)
    assert [(t.verdict.kind, t.stop_reason, len(t.turns)) for t in found] == [
        (VerdictKind.INVALID, StopReason.INFRASTRUCTURE, 1),
        (VerdictKind.PASSED, StopReason.TURN_LIMIT, 4),
    ]
    assert "2 attempts failed, the last: status 500" in found[0].verdict.reason
    assert counters["endpoint/num_server_errors"] == 4


def test_an_episode_goes_on_after_trouble_behind_a_new_turn(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    faults = [Fault.OK, *[Fault.SERVER_ERROR] * 2, Fault.OK, *[Fault.SERVER_ERROR] * 2, Fault.OK]
    (found,), counters = run(faults, "edit < => <= @2", task, tmp_path, renderer)
    assert (found.verdict.kind, found.stop_reason, len(found.turns)) == (VerdictKind.PASSED, StopReason.TURN_LIMIT, 4)
    assert counters["endpoint/num_server_errors"] == 4


def test_a_full_context_of_the_server_ends_the_episode(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    (found,), _ = run([Fault.OK, Fault.TOO_LONG], "edit < => <= @2", task, tmp_path, renderer)
    assert (found.verdict.kind, found.stop_reason) == (VerdictKind.PASSED, StopReason.TOKEN_LIMIT)


def test_a_refusal_stops_the_run(task: Task, tmp_path: Path, renderer: ChatRenderer) -> None:
    with pytest.raises(ServerRejectedError, match="put a valid key into OPENAI_API_KEY"):
        run([Fault.WRONG_KEY], "submit", task, tmp_path, renderer, num=3)


def test_no_key_is_left_behind(
    task: Task,
    tmp_path: Path,
    renderer: ChatRenderer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server echoes the headers of every request in its errors; the run folder and the log hold no key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level("DEBUG")
    (found,), _ = run([Fault.OK, Fault.KEY_ECHO], "undo", task, tmp_path, renderer)
    assert "[key]" in found.verdict.reason
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(found, phase="rollout", step=0, split="test")
        (stored,) = store.trajectories()
    assert stored.verdict.reason == found.verdict.reason
    assert KEY not in repr(stored)
    assert KEY not in caplog.text
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_limit_of_cost_needs_a_price(renderer: ChatRenderer) -> None:
    config = CONFIG.model_copy(update={"pipeline": PipelineConfig(max_cost_usd=1.0)})
    endpoint = EndpointConfig(base_url="http://127.0.0.1:1/v1", model="tiny")
    priced = endpoint.model_copy(update={"prices": {"tiny": Price(input_usd=1.0, output_usd=2.0)}})

    async def get(one: EndpointConfig) -> str:
        policies = PolicyCache(config, renderer)
        policy = await policies.get(PolicyRef("openai-tiny", endpoint=one))
        await policies.close()
        return policy.id

    with pytest.raises(ConfigError, match="no 'tiny'; add its price"):
        asyncio.run(get(endpoint))
    assert asyncio.run(get(priced)) == "tiny"
