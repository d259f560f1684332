"""Streams: what they hold together, and their end when a client goes away or does not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import numpy as np
import pytest

from repairgym.config.commands import ServeConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.embedded import Watch
from repairgym.inference.engine.requests import Request, draw_uniforms
from repairgym.inference.engine.shaping import Shaping
from repairgym.inference.renderer import ChatRenderer
from repairgym.serving.app import ModelServer
from repairgym.serving.models import PolicyModel, ScriptModel

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
HELLO = [{"role": "user", "content": "f is wrong"}]
STREAM = {"messages": HELLO, "stream": True, "max_tokens": 200}


class EndlessSampler:
    """Samples the same token until it is cancelled."""

    def __init__(self) -> None:
        self.num_running = 0
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def generate_shaped(
        self,
        session_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        shaping: Shaping | None,
        watch: Watch | None,
    ) -> Generation:
        request = Request(session_id, np.array(prompt_ids), 10**9, frozenset(), 1.0, draw_uniforms(0, 1, 1))
        self.num_running += 1
        try:
            while True:
                request.append(ord("a") - 30, -1.0)
                if len(request.token_ids) == 20:
                    self.has_begun.set()
                assert watch is not None
                watch(request)
                await asyncio.sleep(0)
        finally:
            self.num_running -= 1
            self.has_ended.set()

    async def end_session(self, session_id: str) -> None:
        """Nothing is held."""


async def post(
    model: PolicyModel | ScriptModel,
    body: Mapping[str, Any],
    send: Callable[[Any], Any],
    gone: asyncio.Event,
    **settings: Any,
) -> None:
    """Call the application as a server does; the client is gone once ``gone`` is set."""
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }
    await ModelServer(model, "tiny", ServeConfig(**settings)).app()(scope, receive, send)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_goes_ends_the_sampling(renderer: ChatRenderer, is_stream: bool) -> None:
    sampler, gone = EndlessSampler(), asyncio.Event()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    running = asyncio.create_task(post(PolicyModel(sampler, renderer, 256), STREAM | {"stream": is_stream}, send, gone))
    await asyncio.wait_for(sampler.has_begun.wait(), 20)
    assert sampler.num_running == 1
    gone.set()
    await asyncio.wait_for(running, 20)
    assert sampler.num_running == 0
    assert (len(sent) > 5) == is_stream


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_ends_the_sampling(renderer: ChatRenderer) -> None:
    sampler = EndlessSampler()

    async def send(message: Any) -> None:
        await asyncio.Event().wait()

    running = post(PolicyModel(sampler, renderer, 256), STREAM, send, asyncio.Event(), client_timeout_s=0.1)
    await asyncio.wait_for(running, 20)
    assert sampler.num_running == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError("odd"), TimeoutError()])
async def test_any_failure_of_the_model_is_an_event(renderer: ChatRenderer, error: Exception) -> None:
    sampler = EndlessSampler()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def fail(*arguments: Any) -> Generation:
        watch = arguments[-1]
        request = Request("s", np.array([1]), 10**9, frozenset(), 1.0, draw_uniforms(0, 1, 1))
        request.append(ord("a") - 30, -1.0)
        watch(request)
        await asyncio.sleep(0.01)
        raise error

    sampler.generate_shaped = fail  # type: ignore[method-assign]
    await asyncio.wait_for(post(PolicyModel(sampler, renderer, 256), STREAM, send, asyncio.Event()), 20)
    told = b"".join(message.get("body", b"") for message in sent).decode()
    assert '"type":"server_error"' in told
    assert sent[-1]["more_body"] is False


@pytest.mark.asyncio
async def test_tool_calls_are_streamed_whole_behind_the_text(renderer: ChatRenderer, connect: Connect) -> None:
    text = 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"required": ["command"]}}}]
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        body = {"messages": HELLO, "tools": tools, "stream": True}
        lines = (await client.post("/v1/chat/completions", json=body)).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert lines[-2:] == ["data: [DONE]", ""]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Look.\n"
    [call] = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert call["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.asyncio
async def test_an_answer_that_came_as_a_stream_continues_its_tokens(model: PolicyModel, connect: Connect) -> None:
    body = {"messages": HELLO, "max_tokens": 6, "seed": 4, "stop": ["zzz"], "return_token_ids": True}
    async with connect(model) as client:
        lines = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text.split("\n\n")[:-2]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        ids = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids") or ()]
        messages = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
        following = (await client.post("/v1/chat/completions", json=body | {"messages": messages})).json()
    prompt = chunks[0]["prompt_token_ids"]
    assert len(ids) <= 6
    assert following["prompt_token_ids"][: len(prompt) + len(ids)] == prompt + ids
