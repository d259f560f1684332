"""Model calls of a verifiers rollout: retried as one call, ended by verifiers, rejected; verifiers is not needed."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from repairgym.bridges.verifiers.episodes import InterceptedPolicy
from repairgym.config.models import EndpointConfig
from repairgym.errors import ModelReplyError, ModelServerError, PromptTooLongError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.testing.servers import HttpFake, HttpRequest, send, url_of

SAID = {"choices": [{"message": {"role": "assistant", "content": "submit"}, "finish_reason": "stop"}]}
CALLED = {"choices": [{"message": {"content": None, "tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"}]}


class Interception(HttpFake):
    """Answers with statuses in their order, then with 200 and ``reply``."""

    def __init__(self, statuses: list[int], reply: dict[str, object], text: str = "no") -> None:
        self._statuses = statuses
        self._reply = reply
        self._text = text
        self.heads: list[str] = []

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        self.heads.append(request.head)
        if self._statuses:
            return await send(writer, self._statuses.pop(0), json.dumps({"error": self._text}).encode())
        return await send(writer, 200, json.dumps(self._reply).encode())


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(load_tokenizer(shipped_base()))


async def ask(fake: HttpFake, renderer: ChatRenderer, *, is_stopped: bool = False) -> Generation:
    async with await fake.serve() as server:
        config = EndpointConfig(base_url=url_of(server), model="m", has_seed=False, max_attempts=3, backoff_s=0.001)
        async with EndpointClient(config, key="secret") as client:
            policy = InterceptedPolicy(client, renderer, lambda: is_stopped)
            sampling = SamplingParams(max_tokens=1, stop_token_ids=renderer.stop_token_ids)
            return await policy.generate("s", renderer.open_ids("f is wrong"), sampling)


@pytest.mark.asyncio
async def test_calls_are_retried_as_one_call(renderer: ChatRenderer) -> None:
    fake = Interception([429, 503], SAID)
    generation = await ask(fake, renderer)
    assert renderer.decode(generation.token_ids) == "submit"
    assert (generation.is_stopped, generation.policy_version) == (True, UNKNOWN_VERSION)
    keys = [re.search(r"(?i)idempotency-key: (\w+)", head) for head in fake.heads]
    assert len(keys) == 3
    assert len({key[1] for key in keys if key}) == 1
    assert all("Bearer secret" in head for head in fake.heads)


@pytest.mark.asyncio
async def test_an_episode_that_verifiers_ended_is_graded(renderer: ChatRenderer) -> None:
    with pytest.raises(PromptTooLongError, match="verifiers has ended the rollout"):
        await ask(Interception([400], SAID, "rollout stopped: max_turns"), renderer, is_stopped=True)
    with pytest.raises(PromptTooLongError, match="too long"):
        await ask(Interception([400], SAID, "maximum context length is 8"), renderer)
    with pytest.raises(ModelServerError, match="status 400") as caught:
        await ask(Interception([400], SAID), renderer)
    assert type(caught.value) is ModelServerError  # of this episode: other rollouts continue


@pytest.mark.asyncio
async def test_calls_of_tools_are_no_empty_message(renderer: ChatRenderer) -> None:
    with pytest.raises(ModelReplyError):
        await ask(Interception([], CALLED), renderer)
