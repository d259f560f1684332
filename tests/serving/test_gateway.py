"""An episode's model: only answers that were asked for change what the episode tells of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest

from repairgym.config.pipeline import PipelineConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import StopReason
from repairgym.serving.gateway import EpisodeModel, override_body

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
SHORT = [{"role": "user", "content": "f is wrong"}]
LONG = [{"role": "user", "content": "x" * 2000}]
FOREIGN = [*SHORT, {"role": "assistant", "content": "mine"}, *SHORT]


class Policy:
    """Answers at once, or never while it is stalled."""

    id = "policy"
    is_stalled = False

    def __init__(self, renderer: ChatRenderer) -> None:
        self._ids = tuple(renderer.action_ids("a < b"))

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        if self.is_stalled:
            await asyncio.Event().wait()
        ids = self._ids
        return Generation(token_ids=ids, log_probs=(-1.0,) * len(ids), is_stopped=True, policy_version=0)

    async def end_session(self, session_id: str) -> None:
        """Nothing is held."""


@pytest.fixture
def policy(renderer: ChatRenderer) -> Policy:
    return Policy(renderer)


@pytest.fixture
def episode(policy: Policy, renderer: ChatRenderer) -> EpisodeModel:
    limits = PipelineConfig(max_len_tokens=400, max_action_tokens=50)
    return EpisodeModel(policy, renderer, limits, session_id="s", seed=1, temperature=1.0)


@pytest.mark.asyncio
async def test_a_count_changes_no_episode(episode: EpisodeModel, connect: Connect) -> None:
    async def count(client: httpx2.AsyncClient, messages: Any) -> int:
        return int((await client.post("/v1/messages/count_tokens", json={"messages": messages})).json()["input_tokens"])

    async with connect(episode) as client:
        assert await count(client, LONG) > 400
        assert await count(client, FOREIGN) > 0
        assert (episode.limit, episode.histories.counts.num_foreign_answers) == (None, 0)
        assert (await client.post("/v1/chat/completions", json={"messages": LONG})).status_code == 400
        assert episode.limit is StopReason.TOKEN_LIMIT
        await count(client, SHORT)
        assert episode.limit is StopReason.TOKEN_LIMIT
        assert (await client.post("/v1/chat/completions", json={"messages": FOREIGN})).status_code == 200
        assert (episode.limit, episode.histories.counts.num_foreign_answers) == (None, 1)


@pytest.mark.asyncio
async def test_rejected_requests_count_no_answers(episode: EpisodeModel, connect: Connect) -> None:
    async with connect(episode, max_concurrent=1, max_waiting=0) as client:
        body = {"messages": FOREIGN, "n": 2}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 400
    assert episode.histories.counts.num_foreign_answers == 0


@pytest.mark.asyncio
async def test_a_stalled_server_that_the_agent_gave_up_on_counts_as_a_wait(
    episode: EpisodeModel, policy: Policy, connect: Connect
) -> None:
    async with connect(episode) as client:
        await client.post("/v1/chat/completions", json={"messages": SHORT})
        policy.is_stalled = True
        for _ in range(2):  # an agent that tries again
            asked = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": SHORT}))
            await asyncio.sleep(0.3)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
    assert 0.3 < episode.waited_s() <= episode.generate_s


def test_fields_that_change_the_distribution_are_the_configurations() -> None:
    body = {"messages": SHORT, "min_tokens": 5, "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 3}
    assert override_body(body) == {"messages": SHORT, "max_tokens": 3}
