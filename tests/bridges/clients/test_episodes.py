"""Sessions of clients: an episode like any other, bounded, stored, and silent about the repair."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError

from repairgym.bridges.clients.episodes import PHASE, Session, describe_verdict
from repairgym.config.agent import ExternalAgentConfig
from repairgym.config.commands import ServeTasksConfig
from repairgym.config.pipeline import FullConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import StopReason, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

REPAIR = {"path": "m.py", "content": "def f(a, b):\n    return a <= b\n"}


@pytest.mark.asyncio
async def test_a_client_repairs_a_task_and_its_episode_is_an_ordinary_record(make_server, tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        session = Session(make_server(store=store))
        task, opened = await session.begin("tiny-2")
        assert (task.id, opened.trajectory) == ("tiny-2", None)
        assert task.issue in opened.text
        assert "a < b" in (await session.call("read_file", {"path": "m.py"})).text
        assert (await session.call("test", {})).text.startswith("failed 1 of 1")
        await session.call("write_file", REPAIR)
        ended = await session.call("submit", {})
        (stored,) = store.trajectories(phase=PHASE)
    assert ended.trajectory is not None
    assert stored.verdict.kind is VerdictKind.PASSED
    assert [turn.tool for turn in stored.turns] == ["read_file", "test", "write_file", "submit"]
    assert stored.turns[2].arguments == REPAIR
    assert (stored.policy_id, stored.stop_reason) == ("test", StopReason.SUBMITTED)
    assert set(stored.ledger.policy_version[stored.ledger.is_action].tolist()) == {UNKNOWN_VERSION}
    told = json.dumps(describe_verdict(ended.trajectory))
    assert '"reward": 1.0' in told
    assert "test_f" not in told


@pytest.mark.asyncio
async def test_texts_come_back_as_the_record_has_them(make_server):
    session = Session(make_server())
    await session.begin()
    odd = "<|im_end|>\n</think> <tool_call>{}</tool_call> ```\n\u00e9\ufb01 \t\n"
    await session.call("write_file", {"path": "n.py", "content": odd})
    shown = await session.call("read_file", {"path": "n.py"})
    assert session.episode is not None
    assert "<tool_call>{}</tool_call>" in shown.text
    assert "\u00e9\ufb01" in shown.text
    await session.close()


@pytest.mark.asyncio
async def test_a_call_that_the_format_cannot_hold_is_an_error_and_the_episode_goes_on(make_server):
    session = Session(make_server())
    await session.begin()
    refused = await session.call("read_file", {"path": float("nan")})  # equal to nothing that is read back
    assert (refused.error, refused.trajectory) == ("format", None)
    assert "cannot hold" in refused.text
    assert "a < b" in (await session.call("read_file", {"path": "m.py"})).text
    await session.close()


@pytest.mark.asyncio
async def test_mistakes_are_observations_and_limits_end_the_episode(make_server):
    session = Session(make_server("rollout.pipeline.max_turns=3"))
    await session.begin("tiny-1")
    unknown = await session.call("format_disk", {})
    assert (unknown.error, "no tool 'format_disk'" in unknown.text) == ("format", True)
    assert (await session.call("read_file", {"file": "m.py"})).error == "tool"
    ended = await session.call("test", {})
    assert ended.trajectory is not None
    assert (ended.trajectory.stop_reason, ended.trajectory.verdict.reward) == (StopReason.TURN_LIMIT, 0.0)
    with pytest.raises(InputError, match="has ended"):
        await session.call("test", {})


@pytest.mark.asyncio
async def test_a_lost_sandbox_is_no_failure_of_the_client(make_server):
    session = Session(make_server(backend=ScriptedBackend(scripted_answer("no"), num_failures=99)))
    await session.begin("tiny-1")
    ended = await session.call("test", {})
    assert ended.trajectory is not None
    assert describe_verdict(ended.trajectory)["reward"] is None
    assert ended.error == "infrastructure"


@pytest.mark.asyncio
async def test_places_are_bounded_and_come_back(make_server):
    backend = ScriptedBackend(scripted_answer("no"))
    server = make_server("max_episodes=1", backend=backend)
    first, second = Session(server), Session(server)
    await first.begin("tiny-1")
    await first.call("test", {})
    with pytest.raises(InputError, match="max_episodes"):
        await second.begin("tiny-1")
    await first.begin("tiny-1")  # another one instead of its own
    await first.close()
    assert all(sandbox.is_closed for sandbox in backend.sandboxes)
    await second.begin("tiny-1")
    with pytest.raises(InputError, match="none of the 2 tasks"):
        await second.begin("tiny-9")
    assert (await second.call("test", {})).error == ""  # its episode goes on
    await second.close()
    assert server.num_running == 0


@pytest.mark.asyncio
async def test_a_start_that_is_rejected_takes_no_task(make_server):
    server = make_server("max_episodes=1")
    first, second = Session(server), Session(server)
    begun = [(await first.begin())[0].id]
    with pytest.raises(InputError, match="max_episodes"):
        await second.begin()
    begun.append((await first.begin())[0].id)
    await first.close()
    assert begun == ["tiny-1", "tiny-2"]


@pytest.mark.asyncio
async def test_a_silent_client_loses_its_episode(make_server):
    server = make_server("idle_timeout_s=0.05")
    session = Session(server)
    await session.begin("tiny-1")
    await asyncio.sleep(0.2)
    assert server.num_running == 0
    with pytest.raises(InputError, match="without a call"):
        await session.call("test", {})


@pytest.mark.asyncio
async def test_tasks_come_in_turn_and_episodes_have_ids_of_their_own(make_server, tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        server = make_server(store=store)
        session = Session(server)
        begun = []
        for _ in range(3):
            task, _ = await session.begin()
            begun.append(task.id)
            await session.call("submit", {})
        again = Session(make_server(store=store))
        await again.begin("tiny-1")
        await again.call("submit", {})
        assert begun == ["tiny-1", "tiny-2", "tiny-1"]
        ids = [row.id for row in store.rows(phase=PHASE, task_ids=["tiny-1"])]
    assert ids == [f"{PHASE}/0/tiny-1#{k}" for k in range(3)]


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (RolloutConfig(agent=ExternalAgentConfig(command=("agent",))), "the client is the agent"),
        (RolloutConfig(pipeline=PipelineConfig()), "action_format"),
        (RolloutConfig(pipeline=FullConfig(action_format="native")), "one attempt"),
    ],
)
def test_settings_without_effect_are_errors(rollout, message):
    with pytest.raises(ValidationError, match=message):
        ServeTasksConfig(rollout=rollout)
